"""Open and closed loops against a server with one place, on the clock of the event loop.

The server is a lock: it answers one request at a time, each after SERVICE seconds. In the middle it freezes once.
"""

from __future__ import annotations

import asyncio

import pytest

from lumen.loadgen import Record, percentile, samples
from lumen.loadgen.client import Prompt
from lumen.loadgen.run import drive

SERVICE, FREEZE = 0.005, 0.3
PROMPTS = [Prompt(str(i), 1, 1) for i in range(40)]


class Virtual(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it: how busy the machine is changes nothing."""

    def __init__(self):
        super().__init__()
        self.now, ready = 0.0, self._selector.select

        def select(timeout):
            self.now += timeout or 0.0
            return ready(0)

        self._selector.select = select

    def time(self):
        return self.now


def now():
    return asyncio.get_running_loop().time()


def one_place(freeze_at=None):
    """send(prompt, intended, zero) of a server that serves one at a time and freezes before one request."""
    lock = asyncio.Lock()

    async def send(prompt, intended, zero):
        start = now() - zero
        async with lock:
            await asyncio.sleep(FREEZE if prompt.text == str(freeze_at) else SERVICE)
        end = now() - zero
        return Record(start if intended is None else intended, start, (end,), end, 1, 1)

    return send


def play(*args, send=None, **kwargs):
    async def go():
        return await drive(send or one_place(20), PROMPTS, *args, clock=now, **kwargs)

    with asyncio.Runner(loop_factory=Virtual) as runner:
        return runner.run(go())


def test_an_open_loop_keeps_its_schedule_whatever_the_server_does():
    schedule = [0.01 * i for i in range(40)]
    records, seconds = play(schedule)
    assert [r.intended for r in records] == schedule and seconds == pytest.approx(0.2 + FREEZE + 19 * SERVICE)
    assert [r.queue for r in records] == pytest.approx(
        [0.0] * 40, abs=1e-6
    )  # sent when due, frozen server or not


def test_coordinated_omission():
    """One user waits through the freeze and asks nothing meanwhile: of 40 requests one is slow. At a schedule
    twenty to thirty are. Odds of passing by luck: none, the freeze is 60 times the service."""
    closed, _ = play(max_concurrency=1)
    opened, _ = play([0.01 * i for i in range(40)])
    slow = [sum(e > 0.06 for e in samples(r, "e2el")) for r in (closed, opened)]
    assert slow[0] == 1 and slow[1] >= 15


def test_a_limit_on_concurrency_hides_the_wait_unless_it_is_counted_from_the_schedule():
    """vLLM's --request-rate with --max-concurrency: latency from sending looks like the closed loop's."""
    records, _ = play([0.01 * i for i in range(40)], max_concurrency=1)
    sent, due = samples(records, "e2el"), samples(records, "e2el", intended=True)
    assert percentile(sent, 75) < 0.06 < percentile(due, 75)
    assert samples(records, "queue") == pytest.approx([d - s for d, s in zip(due, sent, strict=True)])


def test_users_never_exceed_their_number():
    under_way = most = 0

    async def send(prompt, intended, zero):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return Record.of_tokens([1.0])

    seen = []
    records, _ = play(max_concurrency=5, send=send, on_done=seen.append)
    assert most == 5 and len(seen) == len(records) == 40
    play([0.0] * 40, max_concurrency=3, send=send)


def test_records_stand_in_the_order_of_the_prompts():
    async def send(prompt, intended, zero):
        await asyncio.sleep(0.02 - 0.0005 * int(prompt.text))  # later ones end sooner
        return Record.of_tokens([1.0], prompt_len=int(prompt.text))

    records, _ = play(send=send)
    assert [r.prompt_len for r in records] == list(range(40))


def test_bad_runs_get_a_sentence():
    for prompts, schedule, most, says in (
        ([], None, None, "nothing to send"),
        (PROMPTS, None, 0, "must be 1 or more"),
        (PROMPTS, [0.0], None, "1 times for 40 prompts"),
        (PROMPTS, [0.0] * 39 + [float("inf")], None, "Request 40 would be sent at inf s"),
        (PROMPTS, [0.0] * 39 + [float("nan")], None, "Request 40 would be sent at nan s"),
        (PROMPTS, [-1.0] + [0.0] * 39, None, "Request 1 would be sent at -1 s"),
    ):
        with pytest.raises(ValueError, match=says):
            asyncio.run(drive(one_place(), prompts, schedule, max_concurrency=most))
