"""The report: printed and written with the fields of `vllm bench serve`, so results can be compared line by line.

Checked against vllm/benchmarks/serve.py at 009e6d4 (2026). Where vLLM prints 0.00 for the mean of nothing, "-"
stands here (null in the file). Of our own is one block, the queue-inclusive TTFT; and in an open loop both
queue-inclusive blocks, which count from the intended send times, are printed without --max-concurrency too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lumen.loadgen.record import Record

WIDTH = 50
HEADINGS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "ttft_including_client_queue": ("TTFT incl. Client Queue", "Queue-inclusive Time to First Token"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def _line(name: str, value: Any) -> str:
    if value is None:
        value = "-"
    shown = f"{value:<10.2f}" if isinstance(value, float) else f"{value:<10}"
    return f"{name:<40} {shown}".rstrip()


def shown_metrics(
    metrics: Sequence[str], request_rate: float, max_concurrency: int | None, *, trace: bool = False
) -> list[str]:
    """The blocks of a report: those asked for, the queue in the client, and in an open loop the intended times."""
    for name in metrics:
        if name not in ("ttft", "tpot", "itl", "e2el"):
            raise ValueError(f"Metrics with percentiles are ttft, tpot, itl and e2el, got {name!r}.")
    blocks = list(metrics)
    if max_concurrency is not None:
        blocks.append("client_queue_time")
    if trace or not math.isinf(request_rate):
        blocks += ["ttft_including_client_queue", "e2el_including_client_queue"]
    return blocks


def render(
    summary: Mapping[str, Any],
    *,
    request_rate: float = math.inf,
    max_concurrency: int | None = None,
    metrics: Sequence[str] = ("ttft", "tpot", "itl", "e2el"),
) -> str:
    """The banner. `metrics` are blocks of `HEADINGS`; the percentiles shown are those in the summary."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines.append(_line("Successful requests:", summary["completed"]))
    lines.append(_line("Failed requests:", summary["failed"]))
    if max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", max_concurrency))
    if not math.isinf(request_rate):
        lines.append(_line("Request rate configured (RPS):", float(request_rate)))
    lines.append(_line("Benchmark duration (s):", float(summary["duration"])))
    lines.append(_line("Total input tokens:", summary["total_input_tokens"]))
    lines.append(_line("Total generated tokens:", summary["total_output_tokens"]))
    lines.append(_line("Request throughput (req/s):", summary["request_throughput"]))
    if summary["request_goodput"] is not None:
        lines.append(_line("Request goodput (req/s):", summary["request_goodput"]))
        if "ttft_including_client_queue" in metrics:
            fair = summary["request_goodput_including_client_queue"]
            lines.append(_line("Goodput incl. client queue (req/s):", fair))
    lines.append(_line("Output token throughput (tok/s):", summary["output_throughput"]))
    lines.append(_line("Peak output token throughput (tok/s):", summary["max_output_tokens_per_s"]))
    lines.append(_line("Peak concurrent requests:", float(summary["max_concurrent_requests"])))
    lines.append(_line("Total token throughput (tok/s):", summary["total_token_throughput"]))
    for metric in metrics:
        short, heading = HEADINGS[metric]
        lines.append(f"{heading:-^{WIDTH}}")
        for word in _words(summary, metric):
            lines.append(_line(f"{word.capitalize()} {short} (ms):", summary[f"{word}_{metric}_ms"]))
    if "spec_decode_num_drafts" in summary:
        lines += _speculation(summary)
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _speculation(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{'Speculative Decoding':-^{WIDTH}}"]
    lines.append(_line("Acceptance rate (%):", summary["spec_decode_acceptance_rate"]))
    lines.append(_line("Acceptance length:", summary["spec_decode_acceptance_length"]))
    lines.append(_line("Drafts:", summary["spec_decode_num_drafts"]))
    lines.append(_line("Draft tokens:", summary["spec_decode_draft_tokens"]))
    lines.append(_line("Accepted tokens:", summary["spec_decode_accepted_tokens"]))
    rates = summary["spec_decode_per_position_acceptance_rates"]
    if rates:
        lines.append("Per-position acceptance (%):")
        lines += [_line(f"  Position {i}:", 100 * rate) for i, rate in enumerate(rates)]
    return lines


def _words(summary: Mapping[str, Any], metric: str) -> list[str]:
    """mean, median, p99 … : the statistics of a metric that are printed (std is only written)."""
    ending = f"_{metric}_ms"
    words = [key.removesuffix(ending) for key in summary if key.endswith(ending)]
    return [w for w in words if w in ("mean", "median") or (w[0] == "p" and w[1:2].isdigit())]


def result(
    summary: Mapping[str, Any],
    records: Sequence[Record],
    *,
    date: str,
    api: str,
    model: str,
    tokenizer: str | None,
    request_rate: float,
    burstiness: float,
    max_concurrency: int | None,
    label: str | None = None,
    metadata: Mapping[str, str] | None = None,
    detailed: bool = False,
) -> dict[str, Any]:
    """What is written as JSON: vLLM's keys in vLLM's order; `detailed` keeps the numbers of every request."""
    head = {
        "date": date,
        "endpoint_type": "openai" if api == "completions" else "openai-chat",
        "backend": "openai" if api == "completions" else "openai-chat",
        "label": label,
        "model_id": model,
        "tokenizer_id": tokenizer,
        "num_prompts": len(records),
        **(metadata or {}),
        "request_rate": "inf" if math.isinf(request_rate) else request_rate,
        "burstiness": "inf" if math.isinf(burstiness) else burstiness,
        "max_concurrency": max_concurrency,
    }
    if not detailed:
        return {**head, **summary}
    many: dict[str, Any] = {
        "input_lens": [r.prompt_len for r in records],
        "output_lens": [r.output_len if r.ok else 0 for r in records],
        "start_times": [r.start for r in records],
        "intended_times": [r.intended for r in records],
        "ttfts": [r.ttft for r in records],
        "itls": [list(r.itl) for r in records],
        "generated_texts": [r.text for r in records],
        "errors": [r.error for r in records],
    }
    return {**head, **summary, **many}
