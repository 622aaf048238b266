"""Faults at every call of a step: what raises ends the requests that it belongs to, and nobody and nothing else.

A fuse stands at every call into the engine's collaborators. A run without a fault counts the calls; then, seed by seed,
one of them raises, and the run is compared with the one without: neighbours say the same bits, every block comes back,
and the engine answers the next request.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch

import lumen.decode.step
import lumen.serve.runner
from lumen.decode import Draft, Drafter
from lumen.decode.accept import accept
from lumen.io.stop import StopMatcher
from lumen.io.tokenizer import CharTokenizer
from lumen.models import GPTlite, ModelConfig
from lumen.sampling import SamplingParams, Stream, distribution
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.runner import describe
from lumen.serve.scheduler import Limits

from ..tiny import _spread

SEEDS = 1_000
SIZE, KINDS = 31, 12
PEEK, USE, FEED = Stream.peek, Stream.use, StopMatcher.feed
ONE = {
    "matcher.allowed", "matcher.advance", "matcher.rollback", "stream.peek", "stream.use", "describe",
    "token_bytes", "stop", "store.take", "store.put",
}  # fmt: skip
TOGETHER = {
    "draft",
    "distribution",
    "accept",
}  # rows are asked again one by one: nobody's fault, or the only one's
NOBODY = {"forget"}
FORWARD = {"hidden", "head", "write"}
BOOKS = {
    "schedule", "update", "finish", "allocate", "match", "insert", "evict", "counters"
}  # fmt: skip
ALL = ONE | TOGETHER | NOBODY | FORWARD | BOOKS


class Fault(Exception):
    pass


class Fuse:
    """Counts calls by place; blows at call number `at` of `place`. An object of one request stays broken."""

    def __init__(self, place: str = "", at: int = 0):
        self.place, self.at, self.calls, self.blown, self.broken = place, at, Counter(), 0, None
        self.counts = False

    def through(self, place: str, call: Callable, owner: object = None) -> Callable:
        def fused(*args, **kwargs):
            if not self.counts:
                return call(*args, **kwargs)
            self.calls[place] += 1
            of = owner if owner is not None else args[0] if args and isinstance(args[0], Stream) else None
            if place == self.place and (
                self.calls[place] == self.at or (of is not None and of is self.broken)
            ):
                self.blown, self.broken = 1, of
                raise Fault(place)
            return call(*args, **kwargs)

        return fused

    def into(self, owner: object, place: str, name: str) -> None:
        setattr(owner, name, self.through(place, getattr(owner, name)))


class Odd:
    """A grammar: tokens with an odd id, and 2, which ends."""

    def __init__(self, fuse: Fuse):
        self.taken = 0
        for name in ("allowed", "advance", "rollback"):
            fuse.into(self, f"matcher.{name}", name)

    def allowed(self):
        return torch.arange(SIZE) % 2 == 1

    def advance(self, token):
        self.taken += token % 2
        return token % 2 == 1

    def rollback(self, count):
        self.taken -= count


class Guess(Drafter):
    """Two drafts for every second token; often wrong."""

    max_drafts = 2

    def propose(self, contexts):
        return [Draft([(len(c.output) * 2 + 1) % SIZE, 3] if len(c.output) % 2 else []) for c in contexts]


@cache
def model() -> GPTlite:
    config = ModelConfig(
        "fuse", SIZE, 2, 16, 2, 2, 8, 16, 32, mlp="relu", positions="learned", norm="layer", bias=True
    )  # fmt: skip
    return _spread(GPTlite(config), torch.float64, 0)


def workload(kind: int, fuse: Fuse) -> list[Request]:
    """Three or four requests that between them use everything."""
    rng = random.Random(kind)
    stem = [rng.randrange(SIZE) for _ in range(4)]
    found = [
        Request(
            "grammar", [*stem, 5], 4, SamplingParams(seed=kind), constraint=lambda: Odd(fuse), logprobs=2
        ),
        Request(
            "bias", [*stem, 7], 4, SamplingParams(seed=kind, top_p=0.9, logit_bias={3: 0.5}), min_new_tokens=2
        ),
        Request("stop", stem[:3], 4, None, frozenset({2}), ("zz", "qq"), logprobs=1),
        Request("plain", [rng.randrange(SIZE) for _ in range(6)], 2, SamplingParams(seed=kind + 9)),
    ]
    rng.shuffle(found)
    return found[: rng.choice((3, 4, 4))]


def engine_of(kind: int, fuse: Fuse) -> Engine:
    prefix, preemption = ("none", "hash", "radix")[kind % 3], ("swap", "recompute")[kind % 2]
    letters = CharTokenizer("".join(chr(0x4E00 + i) for i in range(SIZE)))
    fuse.into(letters, "token_bytes", "token_bytes")
    made = Engine(
        model(), letters, num_blocks=6, block_size=3, prefix=prefix, drafter=Guess(),
        limits=Limits(3, (6, 30)[kind % 5 > 1], preemption=preemption),
    )  # fmt: skip
    scheduler, runner, store = made.scheduler, made.runner, made.store
    for name in ("schedule", "update", "finish"):
        fuse.into(scheduler, name, name)
    for name in ("match", "insert", "evict"):
        fuse.into(store.prefix, name, name)
    for owner, place, name in (
        (store.pool, "allocate", "allocate"), (store, "store.take", "take"), (store, "store.put", "put"),
        (store, "write", "write"), (made.counters, "counters", "step"), (runner.drafter, "draft", "propose"),
        (runner.drafter, "forget", "forget"),
    ):  # fmt: skip
        fuse.into(owner, place, name)
    return made


class Fused:
    """The model with fuses at its two calls."""

    def __init__(self, fuse: Fuse):
        self.config, self.parameters = model().config, model().parameters
        self.hidden, self.head = fuse.through("hidden", model().hidden), fuse.through("head", model().head)


def run(kind: int, fuse: Fuse, patch: pytest.MonkeyPatch) -> tuple[dict[str, tuple], set[str], Counter]:
    """All requests to their end, then one more: what each became, who failed, how often each place was called."""
    made = engine_of(kind, fuse)
    made.runner.model = made.runner.forward.model = Fused(fuse)
    patch.setattr(lumen.decode.step, "distribution", fuse.through("distribution", distribution))
    patch.setattr(lumen.decode.step, "accept", fuse.through("accept", accept))
    patch.setattr(lumen.serve.runner, "describe", fuse.through("describe", describe))
    patch.setattr(Stream, "peek", fuse.through("stream.peek", PEEK))
    patch.setattr(Stream, "use", fuse.through("stream.use", USE))
    patch.setattr(StopMatcher, "feed", fuse.through("stop", FEED))
    asked = workload(kind, fuse)
    for request in asked:
        made.add(request)
    fuse.counts = True  # what `add` calls is not a step's
    became = {request.id: [[], "", [], None] for request in asked}
    failed: set[str] = set()
    for _ in range(200):
        if not made.has_work:
            break
        before = fuse.blown
        for delta in made.step():
            whole = became[delta.request_id]
            whole[0] += delta.tokens
            whole[1] += delta.text
            whole[2] += [(told.token, told.logprob) for told in delta.logprobs]
            whole[3] = delta.finish_reason
            if delta.finish_reason == "error":
                failed.add(delta.request_id)
                assert delta.times and "Fault" in delta.stop_reason and "log" in delta.stop_reason
        made.scheduler.audit()
        if fuse.blown > before:
            ran = {work.sequence.id for work in made.last_plan.work}
            check_who(fuse.place, failed, ran)
    fuse.counts = False
    assert not made.has_work and fuse.blown == bool(fuse.place)
    assert not made.runner._rows and not made.runner._host and not made.runner._drafts
    made.store.prefix.evict(99)
    assert made.store.pool.num_free == 6, "a block is lost"
    made.add(Request("after", [9, 9, 4], 1))
    after = [token for delta in made.stream() for token in delta.tokens]
    return {name: tuple(whole) for name, whole in became.items()} | {"after": (after,)}, failed, fuse.calls


def check_who(place: str, failed: set[str], ran: set[str]) -> None:
    """Whoever the fault belongs to has failed, and nobody else."""
    if place in ONE:
        assert len(failed) == 1
    elif place in TOGETHER:
        assert len(failed) <= 1
    elif place in NOBODY:
        assert not failed
    elif place in FORWARD:
        assert failed == ran
    else:
        assert place in BOOKS and failed


@pytest.fixture(scope="module")
def sound():
    """Runs without a fault: what each request becomes, and how often each place is called."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for kind in range(KINDS):
            became, failed, calls = run(kind, Fuse(), patch)
            assert not failed
            found[kind] = became, calls
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_fault_at_any_call_of_a_step_ends_whom_it_belongs_to(part, sound, monkeypatch):
    """1,000 seeds, one fault each. Every place is hit."""
    logging.getLogger("lumen.serve").setLevel(logging.CRITICAL)
    hit, ended = Counter(), 0
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        rng = random.Random(seed)
        place = rng.choice(sorted(ALL))
        kind = rng.choice([kind for kind, (_, calls) in sound.items() if calls[place]])
        want, calls = sound[kind]
        fuse = Fuse(place, rng.randint(1, calls[place]))
        became, failed, _ = run(kind, fuse, monkeypatch)
        hit[place] += 1
        ended += len(failed)
        for name, whole in became.items():
            if name not in failed:
                assert whole == want[name], (seed, place, name)
    assert set(hit) == ALL
    assert ended > SEEDS // 8
