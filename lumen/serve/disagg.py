"""Prefill and decode apart: one process computes prompts, another one answers, and keys and values travel between them.

    prefill worker   prompt -> forward -> first token, keys and values  --(torch.distributed)-->  decode worker
    decode worker    receives into blocks of its own, of its own size, and steps its engine without a pause

A long prompt then never delays an answer; the price is the hand-over. Sent whole, it starts when the prompt is done.
Sent layer by layer, layer 0 travels while layer 1 is computed, and only the last layer's journey is left at the end.
What arrives enters the decode engine as a sequence that was swapped out: the scheduler needs no new rule.

Zhong et al. 2024, DistServe, sections 3 and 4; Patel et al. 2024, Splitwise, section 4.2 (layer-wise transfer). gloo
moves host memory; with two CUDA devices NCCL moves device memory.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cache.paged import BlockStore
from ..cache.pool import BlockPool
from .disagg_workers import DECODE, PREFILL, Job, MakeStore, Pool, work
from .request import Request, TokenLogprobs
from .scheduler import Limits, Scheduler

__all__ = ["HandOver", "Pool", "Result", "serve"]


@dataclass(frozen=True)
class HandOver:
    """One request's journey. Seconds: its forward; first byte sent to last byte there; and what of that came after the
    forward had ended, which is all that the request waits for."""

    request_id: str
    num_tokens: int
    num_bytes: int
    prefill_s: float
    transfer_s: float
    exposed_s: float


@dataclass(frozen=True)
class Result:
    """By request: its answer, each token's time in seconds after the start, what was asked about the tokens, and how it
    ended (`finish_reason`, `stop_reason`); and the hand-overs."""

    answers: dict[str, list[int]]
    token_times: dict[str, list[float]]
    handovers: list[HandOver]
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    ends: dict[str, tuple[str | None, str | int | None]] = field(default_factory=dict)


def serve(
    load: Callable[[], Any],
    requests: Sequence[Request],
    *,
    prefill: Pool,
    decode: Pool,
    layerwise: bool = True,
    arrivals: Sequence[float] | None = None,
    limits: Limits | None = None,
    make_store: MakeStore = BlockStore.for_model,
    threads: int = 1,
    timeout: float = 300.0,
) -> Result:
    """Answer `requests` with two worker processes; answers equal those of one engine.

    `load` makes the model in each process and must be importable there, such as
    `functools.partial(lumen.load, "smollm2-135m")`. `arrivals` are seconds after both are ready, default all 0.
    `make_store` is the decode engine's, and importable too: what travels is plain, and packed where it arrives. Raises
    ValueError for a request that fits no pool, RuntimeError with the worker's words if one fails, TimeoutError.
    """
    for request in requests:
        if request.adapter is not None:
            raise ValueError(
                f"{request.id!r} asks for adapter {request.adapter!r}, and the two workers hold none; merge it into "
                "the weights that `load` returns, or use one engine."
            )
        Scheduler(BlockPool(decode.num_blocks, decode.block_size)).check(request)
        if len(request.prompt) > prefill.num_blocks * prefill.block_size:
            raise ValueError(
                f"The prompt of {request.id!r} has {len(request.prompt)} tokens, and the prefill pool holds "
                f"{prefill.num_blocks * prefill.block_size}. Make the pool larger or the prompt shorter."
            )
    if len({r.id for r in requests}) != len(requests):
        raise ValueError("Two requests have the same id; ids must differ.")
    offsets = list(arrivals) if arrivals is not None else [0.0] * len(requests)
    if len(offsets) != len(requests):
        raise ValueError(f"{len(offsets)} arrivals for {len(requests)} requests; give one each.")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            load, list(requests), offsets, (prefill, decode), layerwise, limits or Limits(), make_store, threads,
            f"{folder}/meet"
        )  # fmt: skip
        told = context.SimpleQueue()
        workers = [context.Process(target=work, args=(job, rank, told), daemon=True) for rank in (0, 1)]
        for worker in workers:
            worker.start()
        try:
            return _gather(workers, told, timeout)
        finally:
            for worker in workers:
                worker.join(1.0)
                if worker.is_alive():
                    worker.kill()


def _gather(workers: list[Any], told: Any, timeout: float) -> Result:
    """Wait for both workers' word; the first that fails ends it."""
    found: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(found) < 2:
        if not told.empty():
            rank, error, value = told.get()
            if error:
                raise RuntimeError(f"The {'decode' if rank else 'prefill'} worker failed:\n{error}")
            found[rank] = value
        elif time.monotonic() > deadline:
            raise TimeoutError(f"The two workers were not done after {timeout:g} s; raise timeout.")
        elif any(not w.is_alive() and rank not in found for rank, w in enumerate(workers)) and told.empty():
            raise RuntimeError("A worker ended without a word; was it killed for lack of memory?")
        else:
            time.sleep(0.002)
    start, forwards = found[PREFILL]
    told, arrived = found[DECODE]
    handovers = []
    for name, (num_tokens, num_bytes, began, first_send, ended) in forwards.items():
        there = arrived[name]
        handovers.append(
            HandOver(name, num_tokens, num_bytes, ended - began, there - first_send, max(0.0, there - ended))
        )
    return Result(
        {name: [t for d in deltas for t in d.tokens] for name, deltas in told.items()},
        {name: [d.time - start for d in deltas for _ in d.tokens] for name, deltas in told.items()},
        handovers,
        {name: [entry for d in deltas for entry in d.logprobs] for name, deltas in told.items()},
        {name: (deltas[-1].finish_reason, deltas[-1].stop_reason) for name, deltas in told.items()},
    )
