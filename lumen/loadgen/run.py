"""Send the requests: at the times of a schedule (open loop), or so many at a time (closed loop).

In the open loop a request's clock starts when the schedule says, whatever the server does: a request that had to
wait for a free slot (`max_concurrency`) or for our own event loop shows it as `queue`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lumen.loadgen.client import Prompt, Target, ask
from lumen.loadgen.record import Record
from lumen.loadgen.schedule import check_times
from lumen.timing import quiet

Send = Callable[[Prompt, "float | None", float], Awaitable[Record]]


async def drive(
    send: Send,
    prompts: Sequence[Prompt],
    schedule: Sequence[float] | None = None,
    *,
    max_concurrency: int | None = None,
    on_done: Callable[[Record], Any] = lambda record: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[Record], float]:
    """Send every prompt through `send(prompt, intended, zero)`; records in order, and the run's seconds.

    With a `schedule` (seconds from the start, ascending) this is an open loop. Without one, `max_concurrency`
    users each send their next request when the last one is answered, and nothing was intended earlier.
    """
    if not prompts:
        raise ValueError("There is nothing to send: a run needs one prompt at least.")
    if max_concurrency is not None and max_concurrency < 1:
        raise ValueError(f"The maximum concurrency must be 1 or more, got {max_concurrency}.")
    if schedule is not None and len(schedule) != len(prompts):
        raise ValueError(f"The schedule has {len(schedule)} times for {len(prompts)} prompts.")
    check_times(schedule or ())
    room = asyncio.Semaphore(max_concurrency or len(prompts))

    async def one(prompt: Prompt, intended: float | None, zero: float) -> Record:
        async with room:
            record = await send(prompt, intended, zero)
        on_done(record)
        return record

    tasks = []
    try:
        with quiet():  # a pause of our own garbage collector would look like one of the server
            zero = clock()
            for i, prompt in enumerate(prompts):
                intended = None if schedule is None else schedule[i]
                if intended is not None:
                    await asyncio.sleep(max(0.0, zero + intended - clock()))
                tasks.append(asyncio.create_task(one(prompt, intended, zero)))
            records = list(await asyncio.gather(*tasks))
            return records, clock() - zero
    finally:
        for task in tasks:
            task.cancel()


async def run(
    target: Target,
    prompts: Sequence[Prompt],
    schedule: Sequence[float] | None = None,
    *,
    max_concurrency: int | None = None,
    warmups: int = 0,
    on_done: Callable[[Record], Any] = lambda record: None,
) -> tuple[list[Record], float]:
    """`drive` against a server. `warmups` requests like the first are sent before, one by one, and forgotten."""
    async with target.session() as session:

        async def send(prompt: Prompt, intended: float | None, zero: float) -> Record:
            return await ask(session, target, prompt, intended=intended, zero=zero)

        for _ in range(warmups if prompts else 0):
            await send(prompts[0], None, 0.0)
        return await drive(send, prompts, schedule, max_concurrency=max_concurrency, on_done=on_done)
