"""The second look: two questions side by side, after the encoder found them near. Four rules, English only.

The rules see that something differs, never that two questions mean the same: that is the encoder's part. A rule that
errs costs a hit; a hit that errs gives somebody the answer to another question. Each rule has to earn its place:
chapter 07 counts what every one of them stops and what it costs.

>>> check("How do I not delete a file?", "How do I delete a file?")
'negation'
>>> check("How can I delete a file?", "How do I delete a file?")
''
"""

from __future__ import annotations

import re
from collections import Counter

RULES = ("negation", "number", "roles", "edit")

_NUMBERS = "two three four five six seven eight nine ten eleven twelve"
# Words that say nothing about the subject of a question.
_SMALL = """a an the i me my you your we our is are was were am be been do does did can could may might will would shall
should must have has had get got to of in on at by for from with into as than so if and or but about what which who
whom whose when where why how please hi thanks tell explain way best good right want need"""

NO = {"no", "not", "never", "without", "none", "nobody"}
DIGIT = {word: str(n) for n, word in enumerate(_NUMBERS.split(), 2)} | {"dozen": "12"}
SMALL = set(_SMALL.split()) | NO


def words(text: str) -> list[str]:
    """Lower case, "can't" as "can not", "two" as 2, the plural's s taken off."""
    text = text.lower().replace("can't", "can not").replace("n't", " not").replace("'s", "")
    found = re.findall(r"[a-z]+|\d[\d.,:]*", text.replace("cannot", "can not"))
    return [DIGIT.get(w, w[:-1] if len(w) > 3 and w[-1] == "s" else w) for w in found]


def check(asked: str, stored: str, rules: tuple[str, ...] = RULES) -> str:
    """The name of the rule that refuses to answer `asked` with the answer to `stored`, "" if none does."""
    a, s = words(asked), words(stored)
    topic_a, topic_s = ([w for w in ws if w not in SMALL] for ws in (a, s))
    only_a, only_s = Counter(topic_a) - Counter(topic_s), Counter(topic_s) - Counter(topic_a)
    order_a = [w for w in topic_a if w in topic_s]
    order_s = [w for w in topic_s if w in topic_a]
    exchanged = sum(x != y for x, y in zip(order_a, order_s, strict=False))
    refuses = {
        "negation": sum(w in NO for w in a) != sum(w in NO for w in s),
        "number": {w for w in a if w[0].isdigit()} != {w for w in s if w[0].isdigit()},
        "roles": exchanged == 2 and "and" not in a,
        "edit": max(only_a.total(), only_s.total()) == 1,
    }
    return next((rule for rule in rules if refuses[rule]), "")
