"""The third set of question pairs: put together by a program from plain facts, not written pair by pair.

    python benchmarks/third_set.py            writes lumen/semantic/data/third.tsv

A *relation* is one question about an entity in several wordings ("Who wrote {x}?", "Whose book is {x}?"). Label
and kind of a pair follow from how it was assembled, not from somebody's judgement of the two sentences:

    paraphrase  one relation, one entity, two wordings
    retyped     one wording, one entity, sent through a mechanical change (greeting, lower case, typo, ...)
    entity      one relation, one wording, two entities
    cousin      two relations of one entity, or two entities in two wordings
    opposite    a relation and its opposite (install, uninstall; can, cannot)
    number      one wording, two numbers;  roles: the two entities of a relation change places
    unrelated   two relations that share nothing;  context: the entity is replaced by "it" or "there"

The entities are well-known countries, books, rivers and the like; whether a question has a good answer does not
matter. Pairs of one relation resemble each other, so the set counts for less than its number of lines.
"""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

FILE = Path(__file__).parents[1] / "lumen" / "semantic" / "data" / "third.tsv"
SEED = 7

BOOKS = ["Dracula", "Emma", "Moby-Dick", "Faust", "Ulysses", "Middlemarch", "Candide", "Kidnapped"]
COUNTRIES = ["Chile", "Norway", "Laos", "Ghana", "Latvia", "Jordan", "Nepal", "Cuba"]
ELEMENTS = ["iron", "tin", "neon", "zinc", "sulfur", "cobalt", "iodine", "tungsten"]
RIVERS = [
    "the Rhine",
    "the Volga",
    "the Congo",
    "the Indus",
    "the Elbe",
    "the Tagus",
    "the Yukon",
    "the Niger",
]
PEAKS = ["Mont Blanc", "Denali", "Aconcagua", "Mount Kenya", "the Eiger", "Elbrus", "Ararat", "Mount Cook"]
DEVICES = [
    "telegraph",
    "sewing machine",
    "steam engine",
    "barometer",
    "parachute",
    "typewriter",
    "lighthouse",
]
PROGRAMS = ["Blender", "Inkscape", "Audacity", "VLC", "Emacs", "Thunderbird", "QGIS", "Krita"]
FOODS = ["spinach", "tofu", "goat cheese", "mussels", "cooked lentils", "raw dough", "figs", "mint"]
TOWNS = ["Basel", "Turin", "Lyon", "Ghent", "Graz", "Porto", "Krakow", "Bergen"]
UNITS = [("ounces", "kilograms"), ("grams", "pounds"), ("grains", "ounces"), ("pounds", "kilograms")]

# relation -> (entities, wordings); relations over one list of entities are cousins
RELATIONS: dict[str, tuple[list[str], list[str]]] = {
    "author": (
        BOOKS,
        ["Who wrote {x}?", "Who is the author of {x}?", "Whose book is {x}?", "{x} is by which writer?"],
    ),
    "published": (
        BOOKS,
        [
            "When was {x} published?",
            "In what year did {x} first come out?",
            "What year is the book {x} from?",
        ],
    ),
    "setting": (
        BOOKS,
        [
            "Where is {x} set?",
            "In which place does the story of {x} happen?",
            "What is the scene of the action in {x}?",
        ],
    ),
    "capital": (
        COUNTRIES,
        ["What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital city of {x}."],
    ),
    "money": (
        COUNTRIES,
        ["What is the currency of {x}?", "What money do people use in {x}?", "In {x}, what do I pay with?"],
    ),
    "people": (
        COUNTRIES,
        ["How many people live in {x}?", "What is the population of {x}?", "How many inhabitants has {x}?"],
    ),
    "symbol": (
        ELEMENTS,
        [
            "What is the chemical symbol of {x}?",
            "Which letters stand for {x} in the periodic table?",
            "How is {x} abbreviated in chemistry?",
        ],
    ),
    "melts": (
        ELEMENTS,
        [
            "At what temperature does {x} melt?",
            "What is the melting point of {x}?",
            "How hot must {x} be to become liquid?",
        ],
    ),
    "found": (
        ELEMENTS,
        [
            "Who discovered {x}?",
            "Which chemist first isolated {x}?",
            "To whom do we owe the discovery of {x}?",
        ],
    ),
    "length": (
        RIVERS,
        [
            "How long is {x}?",
            "What is the length of {x}?",
            "How many kilometres does {x} measure from source to mouth?",
        ],
    ),
    "mouth": (
        RIVERS,
        ["Into which sea does {x} flow?", "Where does {x} end?", "What body of water does {x} empty into?"],
    ),
    "height": (
        PEAKS,
        ["How high is {x}?", "What is the height of {x}?", "How far above the sea is the top of {x}?"],
    ),
    "ascent": (
        PEAKS,
        [
            "Who climbed {x} first?",
            "Who was the first to stand on top of {x}?",
            "Which climbers made the first ascent of {x}?",
        ],
    ),
    "inventor": (
        DEVICES,
        ["Who invented the {x}?", "Whose invention is the {x}?", "Who came up with the {x}?"],
    ),
    "since": (
        DEVICES,
        [
            "When was the {x} invented?",
            "From what year does the {x} date?",
            "Since when has there been such a thing as a {x}?",
        ],
    ),
    "install": (
        PROGRAMS,
        [
            "How do I install {x}?",
            "What are the steps to set up {x}?",
            "I want {x} on my computer, what do I do?",
        ],
    ),
    "freeze": (
        FOODS,
        [
            "Can I freeze {x}?",
            "Is it all right to put {x} in the freezer?",
            "Does {x} keep well when frozen?",
        ],
    ),
    "smell": (
        FOODS,
        [
            "What gives {x} its smell?",
            "Where does the smell of {x} come from?",
            "Why does {x} smell the way it does?",
        ],
    ),
}
OPPOSITES: dict[str, tuple[list[str], list[tuple[str, str]]]] = {
    "install": (
        PROGRAMS,
        [
            ("How do I install {x}?", "How do I uninstall {x}?"),
            ("How do I turn on updates in {x}?", "How do I turn off updates in {x}?"),
            ("Why does {x} start so slowly?", "Why does {x} not start?"),
            ("What are the steps to set up {x}?", "How do I remove {x} from my computer?"),
        ],
    ),
    "freeze": (
        FOODS,
        [
            ("Can I freeze {x}?", "Why can I not freeze {x}?"),
            ("Which dishes are made with {x}?", "Which dishes are made without {x}?"),
            ("Is {x} good for me?", "Is {x} bad for me?"),
            ("Who should eat more {x}?", "Who ought to stay away from {x}?"),
        ],
    ),
}
ROLES: list[tuple[list[str], list[str]]] = [
    (PEAKS, ["Is {x} higher than {y}?", "Does {x} rise above {y}?"]),
    (RIVERS, ["Is {x} longer than {y}?", "Does {x} carry more water than {y}?"]),
    (
        TOWNS,
        [
            "How do I get from {x} to {y} by train?",
            "Which trains run from {x} to {y}?",
            "What does a ticket from {x} to {y} cost?",
        ],
    ),
    (PROGRAMS, ["How do I move my files from {x} to {y}?", "Does {x} open what was made with {y}?"]),
]
NUMBERS: list[tuple[str, str]] = [
    ("How many {a} are in {n} {b}?", "How many {a} are in {m} {b}?"),
    ("What is {n} {b} in {a}?", "What is {m} {b} in {a}?"),
    ("Can I lift {n} {b} without help?", "Is one person able to lift {m} {b}?"),
    ("How much does it cost to ship {n} {b} of sand?", "What do I pay for shipping {m} {b} of sand?"),
]


NAMES = {word for entities in (BOOKS, COUNTRIES, PEAKS) for name in entities for word in name.split()}


def lowered(text: str) -> str:
    """The first letter small, unless the word is a name."""
    return text if text.split()[0] in NAMES else text[0].lower() + text[1:]


def retyped(text: str, draw: random.Random) -> str:
    """The same question as another hand would type it."""
    bare = text.rstrip("?.")
    long = [word for word in bare.split() if len(word) > 5 and word.islower()]

    def typo() -> str:
        if not long:
            return f"{bare}??"
        word = draw.choice(long)
        at = draw.randrange(1, len(word) - 2)
        return text.replace(word, word[:at] + word[at + 1] + word[at] + word[at + 2 :], 1)

    ways = [
        lambda: bare.lower(),
        lambda: f"Hi, {lowered(text)} Thanks!",
        lambda: f"Quick question: {lowered(text)}",
        lambda: f"{bare}, please?",
        lambda: (
            text.replace("What is", "What's").replace("Who is", "Who's").replace("Where is", "Where's")
            if " is " in text[:9]
            else f"Do you know: {lowered(text)}"
        ),
        typo,
    ]
    return draw.choice(ways)()


def assemble() -> list[tuple[str, str, str]]:
    """(kind, stored, asked), the same on every machine."""
    draw, rows = random.Random(SEED), []

    def capital(text: str) -> str:
        return text[0].upper() + text[1:]

    def add(kind: str, stored: str, asked: str) -> None:
        row = kind, capital(stored), capital(asked) if kind != "retyped" else asked
        if row[1] != row[2] and row not in rows:
            rows.append(row)

    names = list(RELATIONS)
    for name, (entities, forms) in RELATIONS.items():
        kin = [other for other in names if other != name and RELATIONS[other][0] is entities]
        far = [other for other in names if other != name and other not in kin]
        for one, other in draw.sample(list(combinations(forms, 2)) * 2, 6):
            x = draw.choice(entities)
            add("paraphrase", one.format(x=x), other.format(x=x))
        for _ in range(4):
            text = capital(draw.choice(forms).format(x=draw.choice(entities)))
            add("retyped", text, retyped(text, draw))
        for _ in range(4):
            form, (x, y) = draw.choice(forms), draw.sample(entities, 2)
            add("entity", form.format(x=x), form.format(x=y))
        for _ in range(2):
            (one, other), (x, y) = draw.sample(forms, 2), draw.sample(entities, 2)
            add("cousin", one.format(x=x), other.format(x=y))
        for _ in range(3 if kin else 0):
            x = draw.choice(entities)
            add(
                "cousin",
                draw.choice(forms).format(x=x),
                draw.choice(RELATIONS[draw.choice(kin)][1]).format(x=x),
            )
        for _ in range(3):
            other = RELATIONS[draw.choice(far)]
            stored, asked = draw.choice(forms).format(x=draw.choice(entities)), draw.choice(other[1])
            add("unrelated", stored, asked.format(x=draw.choice(other[0])))
        it = "there" if entities is COUNTRIES else "it"
        for form in draw.sample(forms, 2):
            x, plain = draw.choice(entities), draw.choice(forms)
            asked = form
            for named in ("in {x}", "In {x}", "the book {x}", "the {x}", "a {x}", "{x}"):
                asked = asked.replace(named, it if named.lower() == "in {x}" else "it")
            add("context", plain.format(x=x), asked)
    for entities, twins in OPPOSITES.values():
        for one, other in twins:
            for x in draw.sample(entities, 6):
                add("opposite", *draw.sample([one.format(x=x), other.format(x=x)], 2))
    for entities, forms in ROLES:
        for form in forms:
            for _ in range(5):
                x, y = draw.sample(entities, 2)
                add("roles", form.format(x=x, y=y), form.format(x=y, y=x))
    for one, other in NUMBERS:
        for _ in range(10):
            (a, b), (n, m) = draw.choice(UNITS), draw.sample([2, 3, 5, 8, 12, 30, 75, 120, 400], 2)
            add("number", one.format(a=a, b=b, n=n), other.format(a=a, b=b, m=m))
    return rows


if __name__ == "__main__":
    made = assemble()
    FILE.write_text("".join("\t".join(row) + "\n" for row in made), "utf-8")
    print(f"{len(made)} pairs in {FILE.name}")
