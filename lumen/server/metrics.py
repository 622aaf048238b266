"""What a monitoring system reads at /metrics: `lumen:` series under the names that vLLM gave them.

Times are counted from the moment the HTTP request was understood to the moment a token was known, on one
monotonic clock in one process. What the engine counts itself (cache hits, preemptions) is read from its last
step when somebody asks; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..extras import extra

with extra("serve"):
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

from ..serve.counters import Counters
from ..serve.kv_cache import PLAIN, Kept
from ..serve.request import Delta, Request, Times
from .worker import EngineState, Observer

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
REASONS = ("stop", "length", "abort", "error")

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", TTFT),
    "inter_token_latency_seconds": ("Every gap between two tokens of a request.", PER_TOKEN),
    "request_time_per_output_token_seconds": ("Mean gap after the first token, one per request.", PER_TOKEN),
    "e2e_request_latency_seconds": ("From arrival to the last token.", WHOLE),
    "request_queue_time_seconds": ("From arrival until the scheduler first ran the request.", WHOLE),
    "request_prefill_time_seconds": ("From the first run to the first token.", WHOLE),
    "request_decode_time_seconds": ("From the first token to the last.", WHOLE),
    "request_inference_time_seconds": ("From the first run to the last token.", WHOLE),
    "iteration_tokens_total": ("Tokens computed in one step of the engine, prompts included.", LENGTHS),
    "request_prompt_tokens": ("Prompt tokens of a request.", LENGTHS),
    "request_generation_tokens": ("Generated tokens of a request.", LENGTHS),
}


@dataclass
class _Timeline:
    """When things happened to one request, in seconds of the monotonic clock."""

    arrival: float
    first: float | None = None
    last: float = 0.0
    tokens: int = 0


class Metrics(Observer):
    """Counts what the worker tells. Every app has its own registry, so two servers in one process do not mix."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model_name: str, state: Callable[[], EngineState], kept: Kept | None = None):
        self._registry = CollectorRegistry()
        self._timelines: dict[str, _Timeline] = {}
        label, value = ("model_name",), (model_name,)
        self._histograms = {
            name: Histogram(f"lumen:{name}", text, label, buckets=buckets, registry=self._registry).labels(
                *value
            )
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        ended = Counter(
            "lumen:request_success", "Requests that ended, by reason.", (*label, "finished_reason"),
            registry=self._registry,
        )  # fmt: skip
        self._ended = {reason: ended.labels(*value, reason) for reason in REASONS}
        self._registry.register(_EngineCollector(model_name, state, kept))

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self)  # all that it does is collect

    def collect(self) -> Iterator[Metric]:
        """Every family, without the creation times that the library adds as series of their own."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    def stepped(self, before: EngineState, after: EngineState) -> None:
        if after.counters.steps > before.counters.steps:
            self._see(
                "iteration_tokens_total", after.counters.computed_tokens - before.counters.computed_tokens
            )

    def arrived(self, request: Request) -> None:
        self._timelines[request.id] = _Timeline(request.arrival)

    def saw(self, request: Request, delta: Delta) -> None:
        line = self._timelines[request.id]
        if made := delta.num_generated:
            if line.first is None:
                line.first = delta.time
                self._see("time_to_first_token_seconds", delta.time - line.arrival)
            else:
                for _ in range(made):  # several at once share the gap
                    self._see("inter_token_latency_seconds", (delta.time - line.last) / made)
            line.last = delta.time
            line.tokens += made
        if delta.finish_reason is not None:
            self._end(request, delta.finish_reason, delta.times)

    def left(self, request: Request) -> None:
        """The client has gone, or the engine has."""
        self._end(request, "abort", None)

    def refused(self, request: Request) -> None:
        """It never ran, so it counts nowhere."""
        del self._timelines[request.id]

    def _see(self, name: str, value: float) -> None:
        self._histograms[name].observe(max(value, 0.0))

    def _end(self, request: Request, reason: str, times: Times | None) -> None:
        line = self._timelines.pop(request.id)
        self._ended[reason].inc()
        if (
            reason in ("abort", "error")
            or times is None
            or times.scheduled is None
            or times.first_token is None
        ):
            return  # half a request would bend every distribution
        self._see("request_prompt_tokens", len(request.prompt))
        self._see("request_generation_tokens", line.tokens)
        self._see("request_queue_time_seconds", times.scheduled - times.arrival)
        self._see("request_prefill_time_seconds", times.first_token - times.scheduled)
        self._see("request_decode_time_seconds", times.finished - times.first_token)
        self._see("request_inference_time_seconds", times.finished - times.scheduled)
        self._see("e2e_request_latency_seconds", times.finished - times.arrival)
        if line.first is not None and line.tokens > 1:
            self._see("request_time_per_output_token_seconds", (line.last - line.first) / (line.tokens - 1))


class _EngineCollector(Collector):
    """The engine's own numbers, as they were after its last step."""

    def __init__(self, model_name: str, state: Callable[[], EngineState], kept: Kept | None):
        self._labels, self._state, self._kept = [model_name], state, kept

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        gauges = {
            "num_requests_running": ("Sequences in the batch.", state.num_running),
            "num_requests_waiting": ("Sequences that wait for room.", state.num_waiting),
            "kv_cache_usage_perc": ("Share of the cache blocks in use, 0 to 1.", state.kv_usage),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens taken in.", state.counters.prompt_tokens),
            "generation_tokens": ("Tokens generated.", state.counters.generation_tokens),
            "prefix_cache_queries": (
                "Prompt tokens looked up in the prefix cache.",
                state.counters.prefix_queries,
            ),
            "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", state.counters.prefix_hits),
            "num_preemptions": ("Times a running request lost its blocks.", state.counters.preemptions),
        }
        for kind, found in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in found.items():
                family = kind(f"lumen:{name}", text, labels=["model_name"])
                family.add_metric(self._labels, value)
                yield family
        if self._kept is not None:
            yield from self._cache(self._kept)
        if state.counters.accepted_per_position:  # somebody drafts
            yield from self._drafts(state.counters)

    def _cache(self, kept: Kept) -> Iterator[Metric]:
        """How keys and values are kept: constants, so that a dashboard can put servers beside each other."""
        labels = ["model_name", "cache_dtype", "block_size"]
        info = GaugeMetricFamily("lumen:cache_config_info", "How keys and values are kept.", labels=labels)
        info.add_metric([*self._labels, kept.name, str(kept.block_size)], 1)
        token = GaugeMetricFamily(
            "lumen:kv_cache_bytes_per_token",
            "Bytes that a token takes, scales included.",
            labels=["model_name"],
        )
        token.add_metric(self._labels, kept.bytes_per_token)
        users = GaugeMetricFamily(
            "lumen:kv_cache_users_per_gib", "Sequences of so many tokens that a GiB holds, in this kind and plain.",
            labels=["model_name", "tokens", "cache_dtype"],
        )  # fmt: skip
        for name, count in {PLAIN.name: kept.plain_users, kept.name: kept.users}.items():
            users.add_metric([*self._labels, str(kept.length), name], count)
        yield from (info, token, users)

    def _drafts(self, counters: Counters) -> Iterator[Metric]:
        found = {
            "num_drafts": ("Drafts that were verified.", counters.num_drafts),
            "num_draft_tokens": ("Tokens of these drafts.", counters.draft_tokens),
            "num_accepted_tokens": (
                "Drafted tokens that became part of an answer.",
                counters.accepted_tokens,
            ),
        }
        for name, (text, value) in found.items():
            yield self._counter(f"spec_decode_{name}", text, [((), value)])
        places = [((str(place),), value) for place, value in enumerate(counters.accepted_per_position)]
        text = "Accepted tokens by their place in the draft."
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", text, places, "position")

    def _counter(
        self, name: str, text: str, values: Sequence[tuple[tuple[str, ...], float]], *labels: str
    ) -> Metric:
        family = CounterMetricFamily(f"lumen:{name}", text, labels=["model_name", *labels])
        for more, value in values:
            family.add_metric([*self._labels, *more], value)
        return family
