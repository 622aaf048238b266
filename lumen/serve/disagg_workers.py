"""The two processes of `lumen.serve.disagg`: one runs prompts and sends, the other receives and steps an engine."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..cache.packed import PackedCache, Segment
from ..cache.paged import BlockStore
from .engine import Engine, sentence
from .request import Delta, Request, SequenceState, TokenLogprobs
from .runner import Outcome, Runner
from .scheduler import Limits

PREFILL, DECODE = 0, 1  # ranks
MakeStore = Callable[[Any, int, int], BlockStore]  # of a model, a number of blocks, and their size


@dataclass(frozen=True)
class Pool:
    """The blocks of one side."""

    num_blocks: int
    block_size: int = 16


@dataclass(frozen=True)
class Job:
    """What both workers are told."""

    load: Callable[[], Any]
    requests: list[Request]
    arrivals: list[float]
    pools: tuple[Pool, Pool]
    layerwise: bool
    limits: Limits
    make_store: MakeStore
    threads: int
    meeting: str  # a file through which the two find each other


def work(job: Job, rank: int, told: Any) -> None:
    """One worker process from start to end."""
    try:
        torch.set_num_threads(job.threads)
        pair = torch.cuda.is_available() and torch.cuda.device_count() > 1
        if pair:
            torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl" if pair else "gloo", init_method=f"file://{job.meeting}", rank=rank, world_size=2
        )
        loaded = job.load()
        model = getattr(loaded, "model", loaded)
        model = model.to(f"cuda:{rank}") if pair else model
        model.warm_up()
        with torch.inference_mode():
            value = (_prefill if rank == PREFILL else _decode)(job, model)
        told.put((rank, None, value))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        told.put((rank, traceback.format_exc(), None))


@dataclass(frozen=True)
class _First:
    """A request's first token on its way: its log-probabilities, when its forward began and ended; or why there is
    none."""

    token: int | None
    told: TokenLogprobs | None
    began: float
    ended: float
    why: str = ""

    @classmethod
    def of(cls, name: str, found: Outcome, began: float, ended: float) -> _First:
        if name in found.errors:
            return cls(None, None, began, ended, sentence(found.errors[name]))
        return cls(found.tokens[name][0], next(iter(found.logprobs.get(name, [])), None), began, ended)


class _StreamedCache(PackedCache):
    """Tells every layer's keys and values as soon as they are stored."""

    def __init__(self, store: BlockStore, segment: Segment, tell: Callable[[int], None]):
        super().__init__(store, [segment])
        self._tell = tell

    def store_new(self, layer: int, k: Tensor, v: Tensor) -> None:
        super().store_new(layer, k, v)
        self._tell(layer)


def _prefill(job: Job, model: Any) -> tuple[float, dict[str, tuple[int, int, float, float, float]]]:
    """Compute prompts in order of arrival; a thread sends, so that sending one layer overlaps computing the next."""
    pool = job.pools[PREFILL]
    store = BlockStore.for_model(model, pool.num_blocks, pool.block_size)
    runner = Runner(model, store)
    outbox: queue.Queue[tuple[str, Any] | Tensor | None] = queue.Queue()

    def send() -> None:
        while (item := outbox.get()) is not None:
            if isinstance(item, Tensor):
                dist.send(item, dst=DECODE)
            else:
                dist.send_object_list([item], dst=DECODE)

    sender = threading.Thread(target=send, daemon=True)
    forwards: dict[str, tuple[int, int, float, float, float]] = {}
    position_bytes = sum(one.nbytes for one in store.export([0], 1))
    dist.barrier()
    start = time.monotonic()
    sender.start()
    for request, offset in sorted(zip(job.requests, job.arrivals, strict=True), key=lambda pair: pair[1]):
        time.sleep(max(0.0, start + offset - time.monotonic()))
        length = len(request.prompt)
        table = store.allocate(-(-length // pool.block_size))

        def layers(which: slice, table: list[int] = table, length: int = length) -> Tensor:
            """Keys and values of some layers in order of position: (2, layers, length, Hkv, D)."""
            return torch.stack(store.export(table, length, which))

        began = time.monotonic()
        sends: list[float] = []

        def tell(layer: int, layers: Callable[[slice], Tensor] = layers, sends: list[float] = sends) -> None:
            if job.layerwise:
                sends.append(time.monotonic())
                outbox.put(layers(slice(layer, layer + 1)))

        outbox.put(("prompt", request.id))
        sequence = SequenceState(request, (0.0, 0))
        cache = _StreamedCache(store, Segment(table, 0, length), tell)
        tokens = torch.tensor([list(request.prompt)], device=cache.pos.device)
        hidden = model.hidden(tokens, cache.pos, cache)
        sampled = Outcome()
        runner.sample([sequence], model.head(hidden[0, -1:]), sampled)
        ended = time.monotonic()
        if not job.layerwise:
            sends.append(ended)
            outbox.put(layers(slice(None)))
        outbox.put(("first", _First.of(request.id, sampled, began, ended)))
        runner.forget(request.id)
        store.pool.release(table)
        forwards[request.id] = length, position_bytes * length, began, sends[0], ended
    outbox.put(("end", None))
    outbox.put(None)
    sender.join()
    return start, forwards


def _decode(job: Job, model: Any) -> tuple[dict[str, list[Delta]], dict[str, float]]:
    """Step the engine over whatever has arrived; a thread receives."""
    pool = job.pools[DECODE]
    engine = Engine(
        model, num_blocks=pool.num_blocks, block_size=pool.block_size, prefix="none", limits=job.limits,
        make_store=job.make_store,
    )  # fmt: skip
    inbox: queue.Queue[tuple[str, _First, Tensor] | None] = queue.Queue()
    arrived: dict[str, float] = {}
    requests = {r.id: r for r in job.requests}
    store = engine.store
    nothing, _ = store.export([], 0)  # keys of no position: their shape and dtype are those of what will come

    def hear() -> Any:
        heard: list[Any] = [None]
        dist.recv_object_list(heard, src=PREFILL)
        return heard[0]

    def receive() -> None:
        while (word := hear())[0] == "prompt":
            length, num_layers = len(requests[word[1]].prompt), store.num_layers
            pieces, size = (num_layers, 1) if job.layerwise else (1, num_layers)
            shape = 2, size, length, *nothing.shape[2:]
            content = []
            for _ in range(pieces):
                content.append(torch.empty(shape, dtype=nothing.dtype, device=nothing.device))
                dist.recv(content[-1], src=PREFILL)
            first = hear()[1]
            arrived[word[1]] = time.monotonic()
            inbox.put((word[1], first, torch.cat(content, 1)))
        inbox.put(None)

    receiver = threading.Thread(target=receive, daemon=True)
    told: dict[str, list[Delta]] = {name: [] for name in requests}
    dist.barrier()
    receiver.start()
    more = True
    while more or engine.has_work:
        deltas = []
        while more and (not inbox.empty() or not engine.has_work):
            item = inbox.get()
            if item is None:
                more = False
                break
            name, first, content = item
            if first.token is None:
                deltas.append(Delta(name, finish_reason="error", stop_reason=first.why, time=first.ended))
                continue
            deltas.append(
                engine.add_prefilled(
                    requests[name], first.token, content[0].cpu(), content[1].cpu(), told=first.told,
                    scheduled=first.began, known=arrived[name],
                )
            )  # fmt: skip
        for delta in [*deltas, *(engine.step() if engine.has_work else [])]:
            told[delta.request_id].append(delta)
    receiver.join()
    return told, arrived
