"""The exact cache against a dict: keys, age, order of use, tenants, restarts, threads, kills."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lumen.sampling import SamplingParams
from lumen.semantic import ExactCache, key_of

from .fakes import Clock


def test_a_request_is_answered_again_and_any_difference_is_a_miss():
    cache = ExactCache()
    greedy = SamplingParams(temperature=0)
    cache.put("Who?", "Me.", model="m", params=greedy, tenant="ann")
    hit = cache.get("Who?", model="m", params=SamplingParams(temperature=0.0), tenant="ann")
    assert (hit.answer, hit.score, hit.prompt) == ("Me.", 1.0, "Who?")
    for other in (
        {"prompt": "Who? "},
        {"prompt": "who?"},
        {"model": "m2"},
        {"params": SamplingParams(temperature=0, seed=1)},
        {"params": None},
        {"tenant": "bob"},
        {"tenant": ""},
    ):
        request = {"prompt": "Who?", "model": "m", "params": greedy, "tenant": "ann"} | other
        assert cache.get(request.pop("prompt"), **request) is None, other
    assert (cache.stats.hits, cache.stats.misses) == (1, 7)


def test_keys_tell_meaning_apart_and_not_spelling():
    same = [
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}),
        ([1, 2], (1, 2)),
        ({"t": 0}, {"t": -0.0}),
        ({3, 1}, {1, 3}),
    ]
    for one, other in same:
        assert key_of("p", params=one) == key_of("p", params=other)
    different = [1, "1", True, None, [1], {"1": 1}, {1: 1}, {1: "1"}, [[1]], "", [], {}, math.inf, -math.inf]
    different += ["\ud800", "\\ud800", ["inf", True], ["map", []], ["list", []]]
    assert len({key_of("p", params=value) for value in different}) == len(different)
    assert key_of("c", model="ab", tenant="x") != key_of("c", model="b", tenant="xa")
    assert key_of("ab", model="c") != key_of("a", model="bc")
    assert key_of([{"role": "user", "content": "hi"}]) != key_of([{"role": "system", "content": "hi"}])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: key_of("p", params={"t": math.nan}), r"params\['t'\] is NaN"),
        (lambda: key_of("p", params={"f": print}), r"params\['f'\] is a builtin_function"),
        (lambda: key_of(b"p"), "prompt is a bytes"),
        (lambda: key_of("p", tenant=None), "tenant is a text, got None"),
        (lambda: ExactCache(capacity=0), "room for one answer at least, got capacity 0"),
        (lambda: ExactCache(ttl=0), "positive number of seconds, or None for ever; got 0"),
        (lambda: ExactCache().put("p", "a", ttl=-1), "positive number of seconds"),
        (lambda: ExactCache().put("p", [1, 2]), "An answer is a text, got a list"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_an_answer_lives_for_its_time_and_not_a_second_longer():
    clock = Clock()
    cache = ExactCache(ttl=10, clock=clock)
    cache.put("a", "1")
    cache.put("b", "2", ttl=100)
    clock.now += 9.999
    assert cache.get("a").answer == "1"
    clock.now += 0.001
    assert cache.get("a") is None and cache.get("b").answer == "2" and len(cache) == 1
    cache.put("a", "3")
    clock.now += 9
    assert cache.get("a").answer == "3"  # the old deadline does not hit the new answer


def test_the_least_recently_used_goes_first_and_the_dead_before_the_living():
    clock = Clock()
    cache = ExactCache(capacity=3, clock=clock)
    for name in "abc":
        cache.put(name, name)
    cache.get("a")
    cache.put("d", "d")
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    cache.put("c", "again")  # replacing needs no room
    assert len(cache) == 3
    cache.put("short", "s", ttl=1)  # pushes out a, the oldest
    clock.now += 2
    cache.put("e", "e")  # takes the dead one's place
    assert [cache.get(name) is not None for name in ("a", "d", "c", "short", "e")] == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_answers_age_on_while_the_process_is_away(tmp_path):
    clock = Clock()
    with ExactCache(path=tmp_path / "c", ttl=10, clock=clock) as cache:
        cache.put("a", "1")
        cache.put("b", "2", ttl=1000)
    clock.now += 10
    with ExactCache(path=tmp_path / "c", clock=clock) as cache:
        assert cache.get("a") is None and cache.get("b").answer == "2"


def on_disk(path):
    """The file and whatever lies beside it, a journal for one."""
    return b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))


def test_a_deleted_answer_is_gone_from_the_disk(tmp_path):
    path = tmp_path / "c"
    with ExactCache(path=path) as cache:
        cache.put("a", "the secret of ann", tenant="ann")
        cache.put("a", "the secret of bob", tenant="bob")
        assert cache.delete("a", tenant="ann") and not cache.delete("a", tenant="ann")
        assert b"secret of ann" not in on_disk(path) and b"secret of bob" in on_disk(path)
        assert cache.clear("bob") == 1 and cache.clear() == 0
        assert b"secret" not in on_disk(path)


def test_clearing_takes_the_bytes_of_the_dead_too(tmp_path):
    clock, path = Clock(), tmp_path / "c"
    with ExactCache(path=path, clock=clock) as cache:
        cache.put("a", "an old secret", tenant="ann", ttl=5)
        cache.put("b", "kept", tenant="bob")
        clock.now += 5
        assert cache.clear("ann") == 0
        assert b"old secret" not in on_disk(path) and b"kept" in on_disk(path)


def test_what_was_evicted_stays_away_after_a_restart_with_more_room(tmp_path):
    with ExactCache(path=tmp_path / "c", capacity=2) as cache:
        cache.put("a", "a")
        cache.put("b", "b")
        cache.get("a")
        cache.put("c", "c")  # b has to go, though a was written before it
    with ExactCache(path=tmp_path / "c", capacity=9) as cache:
        assert [cache.get(name) is not None for name in "abc"] == [True, False, True]


def test_a_smaller_capacity_on_opening_keeps_the_newest(tmp_path):
    with ExactCache(path=tmp_path / "c") as cache:
        for name in "abcde":
            cache.put(name, name)
    with ExactCache(path=tmp_path / "c", capacity=2) as cache:
        assert [cache.get(name) is not None for name in "abcde"] == [False, False, False, True, True]


def test_the_file_stays_within_a_small_multiple_of_what_it_holds(tmp_path):
    with ExactCache(path=tmp_path / "c", capacity=10) as cache:
        for number in range(300):
            cache.put(str(number), "x" * 100)
        assert cache.disk_bytes < 100 * 500
        assert cache.disk_bytes == (tmp_path / "c").stat().st_size


class AgainstADict(RuleBasedStateMachine):
    """Random use next to an ordered dict that does the same in the plainest way."""

    prompts = st.integers(0, 7).map(str)
    tenants = st.sampled_from(["", "ann"])
    CAPACITY = 4

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock, self.model = Clock(), OrderedDict()
        self.counter = 0
        self.open()

    def open(self):
        path = Path(self.folder.name) / "cache"
        self.cache = ExactCache(capacity=self.CAPACITY, path=path, clock=self.clock)
        self.cache._store._sql.execute("PRAGMA synchronous = OFF")  # what a crash leaves is not tested here

    def living(self):
        for key in [key for key, (_, expires) in self.model.items() if self.clock.now >= expires]:
            del self.model[key]
        return self.model

    @rule(prompt=prompts, tenant=tenants, ttl=st.sampled_from([None, 5.0]))
    def put(self, prompt, tenant, ttl):
        self.counter += 1
        answer = f"{tenant}/{prompt}/{self.counter}"
        self.cache.put(prompt, answer, tenant=tenant, ttl=ttl)
        model = self.living()
        model[prompt, tenant] = answer, math.inf if ttl is None else self.clock.now + ttl
        model.move_to_end((prompt, tenant))
        if len(model) > self.CAPACITY:
            model.popitem(last=False)

    @rule(prompt=prompts, tenant=tenants)
    def get(self, prompt, tenant):
        hit = self.cache.get(prompt, tenant=tenant)
        wanted = self.living().get((prompt, tenant))
        assert (hit and hit.answer) == (wanted and wanted[0])
        if wanted:
            self.model.move_to_end((prompt, tenant))

    @rule(prompt=prompts, tenant=tenants)
    def delete(self, prompt, tenant):
        was_there = self.living().pop((prompt, tenant), None) is not None
        assert self.cache.delete(prompt, tenant=tenant) == was_there

    @rule(tenant=st.sampled_from([None, "", "ann"]))
    def clear(self, tenant):
        gone = [key for key in self.living() if tenant is None or key[1] == tenant]
        assert self.cache.clear(tenant) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule()
    def restart(self):
        self.cache.close()
        self.open()

    @invariant()
    def agrees(self):
        assert len(self.cache) == len(self.living()) <= self.CAPACITY
        assert {entry.answer for entry in self.cache._store} == {answer for answer, _ in self.model.values()}

    def teardown(self):
        self.cache.close()
        self.folder.cleanup()


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


def test_threads_see_only_right_answers_and_none_is_lost(tmp_path):
    cache = ExactCache(path=tmp_path / "c", capacity=1000)
    wrong: list[object] = []

    def work(thread: int) -> None:
        draw = random.Random(thread)
        try:
            for number in range(60):
                cache.put(f"{thread}/{number}", f"answer {thread}/{number}")
                cache.put(f"shared {number % 5}", f"answer shared {number % 5}")
                asked = f"{draw.randrange(4)}/{draw.randrange(60)}"
                hit = cache.get(asked)
                if hit is not None and hit.answer != f"answer {asked}":
                    wrong.append(hit)
                if number % 20 == 19:
                    cache.delete(f"shared {draw.randrange(5)}")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    cache.close()
    with ExactCache(path=tmp_path / "c", capacity=1000) as cache:
        for thread in range(4):
            for number in range(60):
                assert cache.get(f"{thread}/{number}").answer == f"answer {thread}/{number}"


KEEPS = 30
WRITER = f"""
import os, sys
from lumen.semantic import ExactCache
cache = ExactCache(path=sys.argv[1], capacity={KEEPS})
os.write(1, b"ready\\n")
for number in range(int(sys.argv[2]), 10**9):
    cache.put(str(number), f"answer {{number}} " + "x" * (number * 7919 % 20000))
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_killed_at_any_moment_it_loses_nothing_acknowledged_and_is_never_wrong(tmp_path):
    """Each round writes until it is killed, then the file is read."""
    path, first, draw = tmp_path / "c", 0, random.Random(0)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            lines = [writer.stdout.readline() for _ in range(draw.randrange(1, 90))]
            time.sleep(draw.random() * 0.01)
            writer.kill()
            acknowledged = int([*lines, *writer.stdout.read().splitlines()][-1])
        cache = ExactCache(path=path, capacity=KEEPS)
        kept = {}
        for number in range(first - KEEPS - 2, first + 2000):
            hit = cache.get(str(number))
            if hit is not None:
                assert hit.answer == f"answer {number} " + "x" * (number * 7919 % 20000)
                kept[number] = hit
        cache.close()
        newest = max(kept)
        assert newest in (acknowledged, acknowledged + 1)
        assert sorted(kept) == list(range(max(0, newest - KEEPS + 1), newest + 1))
        first = newest + 1
