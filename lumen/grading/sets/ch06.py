"""Exercises of chapter 06: chained keys, hits of a layout, two faulty caches, one claim, one price list."""

from __future__ import annotations

from typing import Any

from lumen import cost
from lumen.grading import Constraint, Decision, ExerciseSet, Number, Numbers, Probe, Statements
from lumen.grading.kinds.slip import Slips

exercises = ExerciseSet(
    "06",
    "The prefix cache",
    then="chapter 07, semantic caches",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | block-keys | A chain of keys | build | 3 | 5 | 20 | 4 |
    | layout-hits | Where the clock stands | predict | 2 | 5 | 10 | 2 |
    | three-wrong-hits | Hits that should not have been | debug | 3 | 5 | 20 | 3 |
    | stale-block | The block that was somebody else's | debug | 3 | 4 | 20 | 3 |
    | price-claims | Four claims about a price list | literature | 2 | 4 | 10 | 2 |
    | where-to-write | To write or not to write | decide | 3 | 5 | 15 | 3 |
    """,
)

# build --------------------------------------------------------------------------------------------


@exercises.checks(
    "block-keys",
    shows="A key of 32 bytes stands for a whole prefix and for everything else that its numbers depend on.",
    forbidden=("lumen.cache.prefix.chain_key", "lumen.cache.HashPrefix"),
)
def _block_keys(answer: Any, probe: Probe) -> None:
    def keys(tokens: list[int], size: int = 4, extra: tuple[Any, ...] = ()) -> list[bytes]:
        got = probe.call(answer, tokens, size, extra)
        proper = isinstance(got, list | tuple) and all(isinstance(key, bytes) for key in got)
        probe.that(proper, gave=got, wanted="a list of bytes, one for each full block")
        slip = "Only full blocks have a key: the last one will still be written to."
        if len(got) < len(tokens) // size:
            slip = "Each full block has a key. To leave one token to run is up to whoever looks the keys up."
        probe.equal(len(got), len(tokens) // size, what="number of keys", slip=slip)
        return list(got)

    def apart(one: list[bytes], other: list[bytes], wanted: str, slip: str) -> None:
        same = sum(a == b for a, b in zip(one, other, strict=True))
        probe.that(same == 0, gave=f"{same} of {len(one)} keys alike", wanted=wanted, slip=slip)

    for count in (10, 8, 3, 0):
        with probe.case(f"{count} tokens in blocks of 4"):
            keys(list(range(count)))
    prompt = [7, 0, 49151, 3, 5, 5, 0, 2, 9, 1, 4, 8]
    with probe.case("the same prompt twice"):
        once = keys(list(prompt))
        probe.that(keys(list(prompt)) == once, gave="other keys", wanted="the same keys")
        short = min(map(len, once)) < 16
        slip = "With patience two prompts with one short key can be found. Use a cryptographic hash, such as sha256."
        probe.that(not short, gave=f"{min(map(len, once))} bytes", wanted="16 bytes at least", slip=slip)
    with probe.case("the same prompt, `extra` left out"):
        got = probe.call(answer, list(prompt), 4)
        probe.that(list(got) == once, gave="other keys", wanted="those of `extra=()`")
    with probe.case("100 blocks"):
        sizes = set(map(len, keys(list(range(400)))))
        slip = (
            "A key that holds the key before it grows with the prompt. Hash it: then all keys have one size."
        )
        probe.that(len(sizes) == 1, gave=f"{min(sizes)} to {max(sizes)} bytes", wanted="one size", slip=slip)
    for place in range(len(prompt)):
        with probe.case(f"another token {place + 1} of 12"):
            block = place // 4
            got = keys([*prompt[:place], prompt[place] + 1, *prompt[place + 1 :]])
            slip = "A block knows nothing of what comes later, and its key must not change."
            same = got[:block] == once[:block]
            probe.that(same, gave=f"another key before block {block + 1}", wanted="the same", slip=slip)
            slip = f"Block {block + 1} has other tokens, and its key does not depend on all of them."
            apart(got[block : block + 1], once[block : block + 1], "another key", slip)
            slip = "A key must stand for everything in front of its block. Hash the parent's key along with the tokens."
            apart(got[block + 1 :], once[block + 1 :], "other keys for all blocks behind it", slip)
    with probe.case("another token in the unfinished block behind"):
        slip = "Nothing of a block that is not full belongs into a key."
        probe.that(
            keys([*prompt, 6, 6]) == keys([*prompt, 6, 7]), gave="other keys", wanted="the same", slip=slip
        )
    with probe.case("two more tokens behind"):
        slip = "Something that comes later went into a key: the prompt's length, for example."
        probe.that(keys([*prompt, 6, 6]) == once, gave="other keys", wanted="the same keys", slip=slip)
    with probe.case("the same tokens in another order"):
        apart(keys([1, 2, 3, 4]), keys([4, 3, 2, 1]), "two keys", "Order matters: a sum or a set forgets it.")
    with probe.case("the same two blocks in another order"):
        slip = (
            "Added up or XORed, hashes forget which block came first. Hash the parent's key with the tokens."
        )
        apart(keys([1, 2, 3, 4, 5, 6, 7, 8]), keys([5, 6, 7, 8, 1, 2, 3, 4]), "four keys", slip)
    spellings: list[tuple[list[int], tuple[Any, ...], list[int], tuple[Any, ...]]] = [
        ([1, 23], (), [12, 3], ()),
        ([256, 1], (), [0, 1], ()),
        ([65536, 1], (), [0, 1], ()),
        ([0, 5], (), [5, 0], ()),
        ([1, 2], (3,), [1, 23], ()),
        ([1, 2], ("3",), [1, 23], ()),
    ]
    for one, mine, other, theirs in spellings:
        named = f", extra {mine} and {theirs}" if mine else ""
        with probe.case(f"tokens {one} and {other}{named}, blocks of 2"):
            slip = "Both are spelled alike before they are hashed. Give every number a fixed width, or separate them."
            if 65536 in one:
                slip = "Two bytes are not enough for a token: the vocabulary of Llama 3 has 128,256."
            apart(keys(one, 2, mine), keys(other, 2, theirs), "two keys", slip)
    tenants = "Two tenants share a key, so one is served the other's numbers."
    spelled = "These are different extras and must be spelled differently before they are hashed."
    hashed = "Python's `hash` gives both the same number. It is made for dictionaries, which compare as well."
    pairs: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
        (("tenant a",), ("tenant b",), tenants),
        (("tenant", 1), ("tenant", 2), "All extras count, not the first alone."),
        (("a", "b"), ("b", "a"), "Tenant a with adapter b is not tenant b with adapter a. Keep their order."),
        ((), ("",), spelled),
        (("a", "b"), ("ab",), spelled),
        *((("a", "b"), (f"a{mark}b",), spelled) for mark in ", |:;/_-."),
        ((1,), ("1",), spelled),
        ((0,), (2**61 - 1,), hashed),
        ((-1,), (-2,), hashed),
    ]
    for this, that, slip in pairs:
        with probe.case(f"extra {this} and {that}"):
            apart(keys(prompt, 4, this), keys(prompt, 4, that), "three other keys", slip)


# predict ------------------------------------------------------------------------------------------

RULES, TOOLS, CLOCK, QUESTION, BLOCK = 910, 300, 12, 42, 16


def _hit(tokens: int, slips: Slips) -> Number:
    return Number(tokens, "tokens", slips=slips, exact=True)


SHARED = (RULES + TOOLS) // BLOCK * BLOCK
HITS = {
    "clock first": _hit(
        0, {lambda got: got > 0: "The clock differs from its first token on, and it comes first."}
    ),
    "clock between": _hit(
        RULES // BLOCK * BLOCK,
        {
            910: "Hits come in whole blocks of 16.",
            912: "The block that holds the end of the rules holds the clock's beginning too: round down.",
            lambda got: got > 912: "The tools stand behind the clock. What they saw is another text now.",
        },
    ),
    "clock last": _hit(
        SHARED,
        {
            1210: "Rules and tools are shared, in whole blocks of 16.",
            1216: "The block in which the clock begins is not shared: round down.",
            1184: "Rules and tools are one beginning: round down once, at its end.",
        },
    ),
    "same again": _hit(
        (RULES + TOOLS + CLOCK + QUESTION - 1) // BLOCK * BLOCK,
        {
            1264: "Then nothing would run, and nothing could be sampled.",
            1263: "All but one token would be right if blocks had one token.",
            1252: "This time the clock is the same, too; and hits come in whole blocks.",
            1200: "This time clock and question are the same as well.",
        },
    ),
    "not run": _hit(
        999 * SHARED,
        {
            1200: "That is what one request need not run. There are 1,000.",
            1_200_000: "The first request finds nothing.",
            1_208_790: "Hits come in whole blocks of 16.",
            1_264_000: "That is all prompt tokens, run or not.",
            65_200: "That is what has to run. What does not?",
        },
    ),
}


exercises.add(
    "layout-hits",
    shows="Hits end at the block in which the first difference lies, and never reach the last token.",
    check=Numbers(HITS),
)


# debug --------------------------------------------------------------------------------------------


@exercises.checks(
    "three-wrong-hits",
    shows="A hit rate does not say whose numbers were hit.",
    forbidden=("lumen.cache.HashPrefix", "lumen.cache.RadixPrefix"),
)
def _three_wrong_hits(answer: Any, probe: Probe) -> None:
    nine = [5, 0, 7, 9, 11, 0, 0, 3, 8]

    def filled(adapter: Any = None) -> Any:
        prefix = probe.call(answer, 4)
        probe.call(prefix.remember, list(nine), [0, 6, 2], adapter)
        return prefix

    def asks(name: str, prompt: list[int], want: list[int], slip: str = "") -> None:
        with probe.case(name):
            probe.equal(probe.call(filled().match, list(prompt), None), want, slip=slip)

    slip = "Two full blocks are known, and the ninth token is left to run: both are hits. Block 0 is a block."
    asks("the same nine tokens, blocks of 4", nine, [0, 6], slip)
    slip = "The longest known beginning counts, whatever stands behind it."
    asks("the same nine tokens and five more", [*nine, 1, 2, 3, 4, 5], [0, 6], slip)
    asks("the same first block, another second one", [*nine[:5], 1, 0, 3, 8], [0])
    slip = "A sum or a set of tokens forgets their order."
    asks("the same tokens in another order", [0, 5, *nine[2:]], [], slip)
    slip = "Its keys and values saw the first block. A block is known by everything before it, too."
    asks("the second block alone, in front", [*nine[4:8], 1], [], slip)
    with probe.case("[1, 23, 4, 5] is known, [12, 3, 4, 5] is asked for"):
        prefix = probe.call(answer, 4)
        probe.call(prefix.remember, [1, 23, 4, 5], [3], None)
        slip = "Joined without separators, both are spelled 12345."
        probe.equal(probe.call(prefix.match, [12, 3, 4, 5, 6], None), [], slip=slip)
    slip = "With both blocks nothing is left to run, and there is no row of logits to sample from."
    asks("eight tokens, two blocks exactly, all of them known", nine[:8], [0], slip)
    asks("a prompt of 1 token", [5], [])
    asks("a prompt of 4 tokens", nine[:4], [])
    with probe.case("blocks of 2"):
        prefix = probe.call(answer, 2)
        probe.call(prefix.remember, [4, 1, 4, 2, 9], [8, 0], None)
        slip = "The size of a block is an argument."
        probe.equal(probe.call(prefix.match, [4, 1, 4, 2, 7], None), [8, 0], slip=slip)
    for mine, theirs in ((3, 5), (None, 0), (0, 2**61 - 1)):
        with probe.case(f"remembered for adapter {mine}, asked for adapter {theirs}"):
            slip = (
                f"hash(0) and hash(2**61 - 1) are both {hash(0)}. A hash finds a candidate; compare what it stands for."
                if theirs == 2**61 - 1
                else "Adapter 0 is an adapter, None is the model without one."
                if mine is None
                else "The same tokens give other keys and values under another adapter."
            )
            probe.equal(probe.call(filled(mine).match, list(nine), theirs), [], slip=slip)
        with probe.case(f"remembered and asked for adapter {theirs}"):
            probe.equal(probe.call(filled(theirs).match, list(nine), theirs), [0, 6])
    slip = "Both tokens have the hash 0. A tuple of tokens as the key is compared, its hash alone is not."
    for place, wanted in ((1, []), (5, [0])):
        name = f"token {place} is 0 in what is known and 2**61 - 1 in the prompt"
        asks(name, [*nine[:place], 2**61 - 1, *nine[place + 1 :]], wanted, slip)
    with probe.case("two sequences, the second block differs"):
        prefix, other = filled(), [*nine[:4], 1, 2, 3, 4, 5]
        probe.call(prefix.remember, list(other), [0, 7], None)
        got = [probe.call(prefix.match, list(tokens), None) for tokens in (nine, other)]
        probe.equal(got, [[0, 6], [0, 7]], slip="What was learned first must not be forgotten.")
    with probe.case("two caches side by side"):
        filled()
        slip = "One cache knows what only the other was told: its dictionary belongs to the class, not to the instance."
        probe.equal(probe.call(probe.call(answer, 4).match, list(nine), None), [], slip=slip)
    with probe.case("two adapters side by side"):
        prefix = filled(1)
        probe.call(prefix.remember, list(nine), [7, 8], 2)
        got = [probe.call(prefix.match, list(nine), adapter) for adapter in (1, 2)]
        probe.equal(got, [[0, 6], [7, 8]])
    with probe.case("the caller's lists change after the call"):
        prefix, tokens, blocks = probe.call(answer, 4), list(nine), [0, 6, 2]
        probe.call(prefix.remember, tokens, blocks, None)
        tokens[0], blocks[0] = 1, 9
        slip = "Keep copies: tokens and blocks belong to a request that goes on, and writes into them."
        got = probe.call(prefix.match, list(nine), None)
        probe.equal(got, [0, 6], slip=slip)
        if isinstance(got, list):
            got.append(3)
        probe.equal(probe.call(prefix.match, list(nine), None), [0, 6], slip=slip)


# Name, number of blocks, and by turns steps and what is said when the last of them gives something else. `write a x`
# takes block a, publishes it under key x and releases it; right of `=` stands what comes out, - for nothing.
STALE: list[tuple[str, int, list[str]]] = [
    ("block 0, published and still held", 3,
     ["take a; publish a x; find x = a", "Block 0 is a block: compare with None."]),
    ("freed in the order 1, 0, 2", 3,
     ["take a; take b; take c; release b; release a; release c; take 3 = b a c",
      "The block that has been free for longest is used first, so that the others can be found a while longer."]),
    ("written, freed, asked for", 3,
     ["write a x; find x = a",
      "Forgetting a key when its block is freed is safe, and leaves no cache: nothing survives its request.",
      "take b; take c; none free", "A block that was found is held again. It must leave the list of free ones."]),
    ("a key that nobody published", 2, ["find x = -", ""]),
    ("freed, then used for another text", 1,
     ["write a x; take a; find x = -",
      "That block holds another text by now. Its old key must go when the block is used again."]),
    ("freed, used again and published under a new key", 1, ["write a x; write b y; find x y = - b", ""]),
    ("one block published under a second key", 2,
     ["take a; publish a x; publish a y; find x y = - a",
      "The block holds the second text by now, so the first key must not find it."]),
    ("one block is used again, another one is not", 2,
     ["write a x; write b y; take c; find y = b", "Only the block that is used again loses its key."]),
    ("two blocks under one key, the older one is used again", 2,
     ["take a; take b; publish a x; publish b x; release a; take c; find x = b",
      "By now the key names another block, whose text is right. Remove it only if it still names yours."]),
    ("two blocks under one key, the older one gets another key", 2,
     ["take a; take b; publish a x; publish b x; publish a y; find x y = b a",
      "`publish` took a key away that names another block by now."]),
    ("the same block published twice under one key", 2,
     ["take a; publish a x; publish a x; find x = a",
      "Take the old key away before you write the new one: they may be the same."]),
    ("lost, then written and published again", 1, ["write a x; write b y; write c x; find x = c", ""]),
    ("found twice, released once", 1,
     ["write a x; find x x = a a", "A key may be found as often as it is asked for.",
      "release a; free =", "One reader is left, so the block is not free."]),
    ("found twice, released twice", 1,
     ["write a x; find x; find x; release a; release a; free = a", "Nobody reads it any more, so it is free."]),
    ("freed in the order 0, 1, then 0 is found and freed again", 2,
     ["write a x; write b y; find x; release a; take 2 = b a",
      "What was found has been free for a shorter time than the other: it goes to the end."]),
    ("held, found by another request", 1,
     ["take a; publish a x; find x; release a; free =",
      "The one who found it still reads: two references, one of them given back."]),
]  # fmt: skip


@exercises.checks(
    "stale-block",
    shows="A free block may be found by its key until it is used again, and not one step longer.",
    forbidden=("lumen.cache.BlockPool", "lumen.cache.HashPrefix"),
)
def _stale_block(answer: Any, probe: Probe) -> None:
    for name, count, turns in STALE:
        with probe.case(name):
            blocks, named = probe.call(answer, count), {"-": None}
            for script, slip in zip(turns[::2], turns[1::2], strict=True):
                for step in script.split("; "):
                    _step(probe, blocks, named, step, slip)


def _step(probe: Probe, blocks: Any, named: dict[str, Any], step: str, slip: str) -> None:
    """One step of `STALE`; `named` knows the blocks by their letters."""
    done, _, wanted = step.partition("=")
    act, *words = done.split()
    want = [named[letter] for letter in wanted.split()]
    if act in ("take", "write") and not want:
        named[words[0]] = probe.call(blocks.allocate)
    if act in ("publish", "write"):
        probe.call(blocks.publish, named[words[0]], {"x": "hello", "y": "goodbye"}[words[1]])
    if act in ("release", "write"):
        probe.call(blocks.release, named[words[0]])
    if act == "none":
        probe.that(not blocks.free, f"{list(blocks.free)} still free", "no free block", slip)
    if act == "free" and want:
        probe.equal(list(blocks.free), want, what="the free blocks", slip=slip)
    elif act == "free":
        probe.equal(len(blocks.free), 0, what="free blocks", slip=slip)
    if act == "find":
        got = [probe.call(blocks.find, {"x": "hello", "y": "goodbye"}[key]) for key in words]
        if want:
            one = len(want) == 1
            probe.equal(got[0] if one else got, want[0] if one else want, slip=slip)
    if act == "take" and want:
        probe.equal([probe.call(blocks.allocate) for _ in want], want, slip=slip)


# literature ---------------------------------------------------------------------------------------

exercises.add(
    "price-claims",
    shows="A discount on one item of a bill is not a saving on the bill.",
    check=Statements(
        false="b",
        why={
            "a": "1.25 + 0.1 = 1.35 for two uses, instead of 2. The limit is 1.15 / 0.9 = 1.28 uses.",
            "b": "90 % is what a read saves. Eight uses are one write and seven reads: 1.95 instead of 8.",
            "c": "1.25 instead of 1: a quarter more, for nothing.",
            "d": "A hit saves prefill. Each later token still reads the weights and the whole cache.",
        },
        number=Number(
            100 * cost.cached_prompt_saving(8),
            "%",
            tolerance=0.002,
            slips={
                90.0: "That is the limit for infinitely many uses.",
                78.75: "The first use is dearer than usual: 1.25, not 1.",
                74.375: "Eight uses are one write and seven reads.",
                78.5: "That is the saving over ten uses, from the chapter. Here there are eight.",
                0.75625: "In percent, please.",
                24.375: "That is what is still paid.",
            },
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------

LENGTHS = {"rules": 2000, "document": 6000, "clock": 20}
ASKED = 80  # tokens of the question
ORDERS = [
    "rules document clock", "rules clock document", "document rules clock",
    "document clock rules", "clock rules document", "clock document rules",
]  # fmt: skip
LIFETIMES = {"5 minutes": 1.25, "1 hour": 2.0}  # price of a write
USES = 2  # questions of a customer about a document, ten minutes apart


def _parts(choice: dict[str, Any]) -> list[tuple[int, float, float]]:
    """(tokens, price, share that is run) of each part and the question; price 1 is an ordinary input token.

    What stands behind the clock is new in each request. What stands behind the document, and the document itself, is
    shared by the questions of one customer. Rules at the very front are shared by all and always warm.
    """
    write = LIFETIMES[choice["lifetime"]]
    scope, parts = "all", []
    for place, name in enumerate(choice["order"].split()):
        if name == "clock":
            scope = "request"
        elif name == "document" and scope == "all":
            scope = "customer"
        if place >= choice["parts cached"]:
            price, run = 1.0, 1.0
        elif scope == "all":
            price, run = 0.1, 0.0
        elif scope == "customer" and choice["lifetime"] == "1 hour":
            price, run = (write + 0.1 * (USES - 1)) / USES, 1 / USES
        else:
            price, run = write, 1.0
        parts.append((LENGTHS[name], price, run))
    return [*parts, (ASKED, 1.0, 1.0)]


def _tokens_run(choice: dict[str, Any]) -> float:
    return sum(tokens * run for tokens, _, run in _parts(choice))


def _dollars(choice: dict[str, Any]) -> float:
    """Per 1,000 requests, at 3 $ per million input tokens."""
    return 1000 * 3e-6 * sum(tokens * price for tokens, price, _ in _parts(choice))


exercises.add(
    "where-to-write",
    shows="Whether a part of a prompt is worth its place in the cache depends on who comes back, and when.",
    check=Decision(
        choices={"order": ORDERS, "parts cached": range(4), "lifetime": list(LIFETIMES)},
        constraints=[
            Constraint(
                "prompt tokens run per request",
                _tokens_run,
                at_most=3500,
                slip="The first token comes too late: too much is run again. What was in front, and is it still there?",
            ),
        ],
        cost=_dollars,
        unit="$ per 1,000 requests",
        within=0.002,
        dearer="Fast enough, but something is written that is never read.",
    ),
)
