"""Right and wrong answers to the exercises of chapter 06."""

import hashlib
from typing import ClassVar

from lumen.grading.proof import Submissions

# A chain of keys ----------------------------------------------------------------------------------


def keys_by_repr(tokens, block_size, extra=()):
    keys, parent = [], b""
    for i in range(len(tokens) // block_size):
        content = parent, tuple(tokens[i * block_size : (i + 1) * block_size]), tuple(extra)
        parent = hashlib.sha256(repr(content).encode()).digest()
        keys.append(parent)
    return keys


def keys_by_bytes(tokens, block_size, extra=()):
    """A running hash over the whole prompt, whose state is read at the end of each block."""
    running, keys = hashlib.blake2b(), []
    for part in extra:
        text = f"{type(part).__name__} {part}".encode()
        running.update(len(text).to_bytes(4, "big") + text)
    running.update(b"|")
    for at, token in enumerate(tokens, 1):
        running.update(token.to_bytes(4, "big"))
        if at % block_size == 0:
            keys.append(running.copy().digest())
    return keys


def keys_without_parent(tokens, block_size, extra=()):
    blocks = [
        tuple(tokens[i : i + block_size])
        for i in range(0, len(tokens) // block_size * block_size, block_size)
    ]
    return [hashlib.sha256(repr((block, extra)).encode()).digest() for block in blocks]


def keys_of_partial_blocks(tokens, block_size, extra=()):
    filled = list(tokens) + [-1] * (-len(tokens) % block_size)
    return keys_by_repr(filled, block_size, extra)


def keys_one_token_short(tokens, block_size, extra=()):
    return keys_by_repr(tokens[:-1], block_size, extra)


def keys_of_sums(tokens, block_size, extra=()):
    sums = [sum(tokens[: (i + 1) * block_size]) for i in range(len(tokens) // block_size)]
    return [hashlib.sha256(repr((total, extra)).encode()).digest() for total in sums]


def keys_joined(tokens, block_size, extra=()):
    ends = range(block_size, len(tokens) + 1, block_size)
    return [hashlib.sha256(("".join(map(str, tokens[:end])) + repr(extra)).encode()).digest() for end in ends]


def keys_of_low_bytes(tokens, block_size, extra=()):
    ends = range(block_size, len(tokens) + 1, block_size)
    return [
        hashlib.sha256(bytes(t % 256 for t in tokens[:end]) + repr(extra).encode()).digest() for end in ends
    ]


def keys_of_anybody(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size)


def keys_with_untyped_extra(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size, ("/".join(map(str, extra)), len(extra)))


def keys_of_eight_bytes(tokens, block_size, extra=()):
    return [key[:8] for key in keys_by_repr(tokens, block_size, extra)]


def keys_of_the_whole(tokens, block_size, extra=()):
    everything = tuple(tokens)
    return [
        key + hashlib.sha256(repr(everything).encode()).digest()
        for key in keys_by_repr(tokens, block_size, extra)
    ]


def keys_padded(tokens, block_size, extra=()):
    keys, parent = [], 0
    for i in range(len(tokens) // block_size):
        parent = hash((parent, *tokens[i * block_size : (i + 1) * block_size], *extra, len(extra)))
        keys.append(parent.to_bytes(32, "little", signed=True))
    return keys


def keys_that_grow(tokens, block_size, extra=()):
    ends = range(block_size, len(tokens) + 1, block_size)
    return [repr((tuple(tokens[:end]), extra)).encode() for end in ends]


def keys_of_the_first_extra(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size, extra[:1])


def keys_of_sorted_extras(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size, sorted(map(repr, extra)))


def keys_with_the_length(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size, (len(tokens), *extra))


def keys_with_the_tail(tokens, block_size, extra=()):
    return keys_by_repr(tokens, block_size, (*tokens[len(tokens) // block_size * block_size :], extra))


def keys_xored(tokens, block_size, extra=()):
    keys, parent = [], hashlib.sha256(repr(extra).encode()).digest()
    for i in range(len(tokens) // block_size):
        own = hashlib.sha256(repr(tokens[i * block_size : (i + 1) * block_size]).encode()).digest()
        parent = bytes(a ^ b for a, b in zip(parent, own, strict=True))
        keys.append(parent)
    return keys


def keys_of_two_bytes(tokens, block_size, extra=()):
    keys, parent = [], repr(extra).encode()
    for i in range(len(tokens) // block_size):
        part = tokens[i * block_size : (i + 1) * block_size]
        parent = hashlib.sha256(parent + b"".join((t % 65536).to_bytes(2, "big") for t in part)).digest()
        keys.append(parent)
    return keys


def keys_that_run_on(tokens, block_size, extra=()):
    """Commas between the tokens and between the extras, none between the last token and the first extra."""
    keys, parent = [], b""
    for i in range(len(tokens) // block_size):
        part = tokens[i * block_size : (i + 1) * block_size]
        text = ",".join(map(str, part)) + ",".join(map(repr, extra))
        parent = hashlib.sha256(parent + text.encode()).digest()
        keys.append(parent)
    return keys


def keys_of_first_tokens(tokens, block_size, extra=()):
    return [
        hashlib.sha256(repr((tokens[: end - 1], end, extra)).encode()).digest()
        for end in range(block_size, len(tokens) + 1, block_size)
    ]


def keys_without_default(tokens, block_size, extra):
    return keys_by_repr(tokens, block_size, extra)


def keys_with_commas(tokens, block_size, extra=()):
    typed = ",".join(part if isinstance(part, str) else f"int {part}" for part in extra)
    return keys_by_repr(tokens, block_size, (typed, not extra))


def keys_as_text(tokens, block_size, extra=()):
    return [key.hex() for key in keys_by_repr(tokens, block_size, extra)]


# Where the clock stands ---------------------------------------------------------------------------

RIGHT_HITS = {
    "clock first": 0,
    "clock between": 896,
    "clock last": 1200,
    "same again": 1248,
    "not run": 1_198_800,
}


def hits(**changed):
    return lambda: {**RIGHT_HITS, **{name.replace("_", " "): value for name, value in changed.items()}}


def computed_hits():
    def found(shared, total=1264):
        return min(shared, total - 1) - min(shared, total - 1) % 16

    return {
        "not run": 999.0 * found(1210),
        "same again": found(1264),
        "clock last": found(1210),
        "clock between": found(910),
        "clock first": found(0),
    }


# Hits that should not have been -------------------------------------------------------------------


class ByContent:
    """The key is the content itself: the dictionary compares it."""

    def __init__(self, block_size):
        self.size, self.known = block_size, {}

    def names(self, tokens, adapter, count):
        return [(adapter, tuple(tokens[: (i + 1) * self.size])) for i in range(count)]

    def remember(self, tokens, blocks, adapter):
        for name, block in zip(self.names(tokens, adapter, len(tokens) // self.size), blocks, strict=False):
            self.known[name] = block

    def match(self, tokens, adapter):
        found = []
        for name in self.names(tokens, adapter, (len(tokens) - 1) // self.size):
            if name not in self.known:
                return found
            found.append(self.known[name])
        return found


class ByDigest:
    """sha256 over text, and the content beside the block."""

    def __init__(self, block_size):
        self.size, self.known = block_size, {}

    def chain(self, tokens, adapter):
        parent = f"adapter {adapter!r}"
        for at in range(0, len(tokens) - len(tokens) % self.size, self.size):
            content = parent, *tokens[at : at + self.size]
            parent = hashlib.sha256(repr(content).encode()).hexdigest()
            yield parent, content

    def remember(self, tokens, blocks, adapter):
        for (key, content), block in zip(self.chain(tokens, adapter), blocks, strict=False):
            self.known[key] = content, block

    def match(self, tokens, adapter):
        found = []
        for key, content in self.chain(tokens[:-1], adapter):
            stored, block = self.known.get(key, (None, None))
            if stored != content:
                break
            found.append(block)
        return found


class OneForAll(ByContent):
    known: ClassVar[dict] = {}

    def __init__(self, block_size):
        self.size = block_size


class ForgetsTheAdapter(ByContent):
    def names(self, tokens, adapter, count):
        return super().names(tokens, None, count)


class ZeroIsNoAdapter(ByContent):
    def names(self, tokens, adapter, count):
        return super().names(tokens, adapter or None, count)


class TrustsTheHash(ByContent):
    def names(self, tokens, adapter, count):
        return [hash(name) for name in super().names(tokens, adapter, count)]


class GivesEverything(ByContent):
    def match(self, tokens, adapter):
        return super().match([*tokens, -1], adapter)


class AlwaysHoldsOneBack(ByContent):
    def match(self, tokens, adapter):
        return super().match([*tokens, -1], adapter)[:-1]


class ZeroIsNoBlock(ByContent):
    def match(self, tokens, adapter):
        return [block for block in super().match(tokens, adapter) if block]


class KeysAreHashed(ByContent):
    """The adapter is compared, the tokens are not."""

    def names(self, tokens, adapter, count):
        return [(adapter, hash(tuple(tokens[: (i + 1) * self.size]))) for i in range(count)]


class JoinsDigits(ByContent):
    def names(self, tokens, adapter, count):
        return [(adapter, "".join(map(str, tokens[: (i + 1) * self.size]))) for i in range(count)]


class SortsTokens(ByContent):
    def names(self, tokens, adapter, count):
        return [(adapter, tuple(sorted(tokens[: (i + 1) * self.size]))) for i in range(count)]


class BlocksOfFour(ByContent):
    def __init__(self, block_size):
        super().__init__(4)


class WholeSequences:
    """Remembers sequences and compares them token by token: right, another algorithm."""

    copied = True

    def __init__(self, block_size):
        self.size, self.known = block_size, []

    def remember(self, tokens, blocks, adapter):
        self.known.append((list(tokens), list(blocks), adapter) if self.copied else (tokens, blocks, adapter))

    def match(self, tokens, adapter):
        best = []
        for known, blocks, whose in self.known:
            if whose == adapter:
                shared = 0
                while shared < min(len(known), len(tokens) - 1) and known[shared] == tokens[shared]:
                    shared += 1
                found = min(shared, len(known) // self.size * self.size) // self.size
                best = max(best, blocks[:found], key=len)
        return best


class KeepsTheLast(WholeSequences):
    """One sequence for each adapter."""

    def remember(self, tokens, blocks, adapter):
        self.known = [one for one in self.known if one[2] != adapter]
        super().remember(tokens, blocks, adapter)


class KeepsTheCallersLists(WholeSequences):
    copied = False


class NeedsTheSameLength(WholeSequences):
    def match(self, tokens, adapter):
        known = [one for one in self.known if len(one[0]) >= len(tokens)]
        self.known, before = known, self.known
        found = super().match(tokens, adapter)
        self.known = before
        return found


class BlocksAlone(ByContent):
    def names(self, tokens, adapter, count):
        return [(adapter, tuple(tokens[i * self.size : (i + 1) * self.size])) for i in range(count)]


# The block that was somebody else's ---------------------------------------------------------------


class Keyed:
    """A second dictionary, from block to key."""

    def __init__(self, count):
        self.free, self.refs, self.by_key, self.key_of = list(range(count)), [0] * count, {}, {}

    def allocate(self):
        block = self.free.pop(0)
        self.refs[block] = 1
        key = self.key_of.pop(block, None)
        if self.by_key.get(key) == block:
            del self.by_key[key]
        return block

    def publish(self, block, key):
        old = self.key_of.get(block)
        if self.by_key.get(old) == block:
            del self.by_key[old]
        self.by_key[key], self.key_of[block] = block, key

    def find(self, key):
        block = self.by_key.get(key)
        if block is None:
            return None
        if not self.refs[block]:
            self.free.remove(block)
        self.refs[block] += 1
        return block

    def release(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.append(block)


class Scanning(Keyed):
    def allocate(self):
        block, *self.free = self.free
        self.refs[block] += 1
        self.by_key = {key: held for key, held in self.by_key.items() if held != block}
        return block


class StillBroken(Keyed):
    def allocate(self):
        block = self.free.pop(0)
        self.refs[block] = 1
        return block


class KeepsBothKeys(Keyed):
    def publish(self, block, key):
        self.by_key[key], self.key_of[block] = block, key


class ZeroIsFalse(Keyed):
    def find(self, key):
        return super().find(key) or None


class LastFreedFirst(Keyed):
    def release(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.insert(0, block)


class ForgetsOnRelease(Keyed):
    def release(self, block):
        super().release(block)
        if not self.refs[block]:
            self.by_key = {key: held for key, held in self.by_key.items() if held != block}


class ForgetsAll(Keyed):
    def allocate(self):
        block = super().allocate()
        self.by_key.clear()
        return block


class RemovesBlindly(Keyed):
    def allocate(self):
        block = self.free.pop(0)
        self.refs[block] = 1
        self.by_key.pop(self.key_of.pop(block, None), None)
        return block


class StaysFree(Keyed):
    def find(self, key):
        block = self.by_key.get(key)
        if block is not None:
            self.refs[block] += 1
        return block


class CountsToOne(Keyed):
    def find(self, key):
        block = super().find(key)
        if block is not None:
            self.refs[block] = 1
        return block


class TakesTheNewKeyAway(Keyed):
    """The old key goes after the new one was written, and they may be the same."""

    def publish(self, block, key):
        old = self.key_of.get(block)
        self.by_key[key], self.key_of[block] = block, key
        if self.by_key.get(old) == block and (old == key or old is not None):
            del self.by_key[old]


class PublishesBlindly(Keyed):
    def publish(self, block, key):
        self.by_key.pop(self.key_of.get(block), None)
        self.by_key[key], self.key_of[block] = block, key


class FindsOnce(Keyed):
    def find(self, key):
        block = super().find(key)
        self.by_key.pop(key, None)
        return block


class NeverFreeAgain(Keyed):
    """A found block is counted twice when it was free."""

    def find(self, key):
        block = self.by_key.get(key)
        if block is not None:
            self.refs[block] += 1
            if block in self.free:
                self.free.remove(block)
                self.refs[block] += 1
        return block


class HolderIsNotCounted(Keyed):
    """Counts those who found a block, not the one who allocated it."""

    def allocate(self):
        block = super().allocate()
        self.refs[block] = 0
        return block

    def find(self, key):
        block = self.by_key.get(key)
        if block is not None:
            if block in self.free:
                self.free.remove(block)
            self.refs[block] += 1
        return block

    def release(self, block):
        self.refs[block] = max(0, self.refs[block] - 1)
        if not self.refs[block]:
            self.free.append(block)


class GoesBackToTheFront(Keyed):
    """What was found and given back takes its old place in the list."""

    def __init__(self, count):
        super().__init__(count)
        self.found = set()

    def find(self, key):
        block = super().find(key)
        self.found.add(block)
        return block

    def release(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.free.insert(0 if block in self.found else len(self.free), block)


BEST = {"order": "rules document clock", "parts cached": 2, "lifetime": "1 hour"}

ANSWERS = {
    "block-keys": Submissions(
        right=[keys_by_repr, keys_by_bytes],
        wrong=[
            (keys_without_parent, "everything in front of its block"),
            (keys_of_partial_blocks, "Only full blocks have a key"),
            (keys_one_token_short, "Each full block has a key"),
            (keys_of_sums, "a sum or a set"),
            (keys_joined, "tokens [1, 23] and [12, 3]"),
            (keys_of_low_bytes, "tokens [256, 1] and [0, 1]"),
            (keys_of_anybody, "the other's numbers"),
            (keys_with_untyped_extra, "extra (1,) and ('1',)"),
            (keys_of_eight_bytes, "With patience"),
            (keys_of_the_whole, "must not change"),
            (keys_as_text, "a list of bytes"),
            (keys_padded, "made for dictionaries"),
            (keys_that_grow, "grows with the prompt"),
            (keys_of_the_first_extra, "not the first alone"),
            (keys_of_sorted_extras, "Keep their order"),
            (keys_with_the_length, "length, for example"),
            (keys_with_the_tail, "that is not full belongs"),
            (keys_xored, "XORed"),
            (keys_of_two_bytes, "Two bytes"),
            (keys_that_run_on, "tokens [1, 2] and [1, 23], extra (3,)"),
            (keys_of_first_tokens, "does not depend on all"),
            (keys_without_default, "missing 1 required"),
            (keys_with_commas, "extra ('a', 'b') and ('a,b',)"),
        ],
        no_lumen="lumen's chain_key makes one key, not the chain",
    ),
    "layout-hits": Submissions(
        right=[lambda: dict(RIGHT_HITS), computed_hits],
        wrong=[
            (hits(clock_first=1184), "differs from its first token"),
            (hits(clock_between=910), "Hits come in whole blocks of 16"),
            (hits(clock_between=912), "beginning too: round down"),
            (hits(clock_between=1200), "The tools stand behind the clock"),
            (hits(clock_last=1210), "Rules and tools are shared, in whole"),
            (hits(same_again=1264), "nothing could be sampled"),
            (hits(same_again=1263), "if blocks had one token"),
            (hits(clock_last=1204), "gave: 1204 tokens"),
            (hits(not_run=1_200_000), "The first request finds nothing"),
            (hits(not_run=1200), "one request need not run"),
            (lambda: {"clock first": 0}, "a dict with the keys"),
        ],
        stubs=[lambda: {**RIGHT_HITS, "not run": ...}],
    ),
    "three-wrong-hits": Submissions(
        right=[ByContent, ByDigest, WholeSequences],
        wrong=[
            (ForgetsTheAdapter, "under another adapter"),
            (ZeroIsNoAdapter, "None is the model without one"),
            (TrustsTheHash, "A hash finds a candidate"),
            (GivesEverything, "no row of logits"),
            (OneForAll, "belongs to the class"),
            (ZeroIsNoBlock, "Block 0 is a block"),
            (BlocksAlone, "A block is known by everything before it"),
            (KeysAreHashed, "its hash alone is not"),
            (JoinsDigits, "spelled 12345"),
            (SortsTokens, "forgets their order"),
            (BlocksOfFour, "case: blocks of 2"),
            (KeepsTheLast, "learned first"),
            (KeepsTheCallersLists, "Keep copies"),
            (NeedsTheSameLength, "whatever stands behind it"),
        ],
        lumen=["lumen.cache.HashPrefix"],
    ),
    "stale-block": Submissions(
        right=[Keyed, Scanning],
        wrong=[
            (StillBroken, "holds another text by now"),
            (ForgetsOnRelease, "nothing survives its request"),
            (ForgetsAll, "Only the block that is used again"),
            (RemovesBlindly, "whose text is right"),
            (StaysFree, "leave the list of free ones"),
            (CountsToOne, "One reader is left"),
            (KeepsBothKeys, "holds the second text by now"),
            (ZeroIsFalse, "compare with None"),
            (LastFreedFirst, "free for longest is used first"),
            (TakesTheNewKeyAway, "before you write the new one"),
            (PublishesBlindly, "took a key away"),
            (FindsOnce, "as often as it is asked for"),
            (NeverFreeAgain, "any more, so it is free"),
            (HolderIsNotCounted, "one of them given back"),
            (GoesBackToTheFront, "it goes to the end"),
        ],
        lumen=["lumen.cache.BlockPool"],
    ),
    "price-claims": Submissions(
        right=[("b", 75.625), lambda: ({"b"}, 100 * (1 - (1.25 + 7 * 0.1) / 8))],
        wrong=[
            (("a", 75.625), "instead of 2"),
            (("c", 75.625), "a quarter more"),
            (("d", 75.625), "A hit saves prefill"),
            (("b", 90.0), "infinitely many"),
            (("b", 78.75), "dearer than usual"),
            (("b", 74.375), "one write and seven reads"),
            (("b", 78.5), "over ten uses"),
            ("b", "the choice alone"),
        ],
    ),
    "where-to-write": Submissions(
        right=[BEST, lambda: dict(reversed(BEST.items()))],
        wrong=[
            ({**BEST, "lifetime": "5 minutes"}, "parts cached=2, lifetime='5 minutes'"),
            ({**BEST, "parts cached": 3}, "never read"),
            ({**BEST, "parts cached": 1}, "parts cached=1, lifetime='1 hour'"),
            ({**BEST, "parts cached": 1, "lifetime": "5 minutes"}, "parts cached=1, lifetime='5 minutes'"),
            ({**BEST, "order": "document rules clock"}, "order='document rules clock'"),
            ({**BEST, "order": "clock rules document"}, "order='clock rules document'"),
            ({**BEST, "parts cached": 4}, "one of 0 to 3"),
        ],
        stubs=[{**BEST, "order": ...}],
    ),
}
