"""`lumen load`: measure any OpenAI-style server under load.

    lumen load --num-prompts 32                                 # all at once
    lumen load --request-rate 4 --burstiness 0.5                # open loop, in bursts
    lumen load --max-concurrency 8                              # closed loop of eight users
    lumen load --trace requests.jsonl --base-url http://host:8000 --api chat
    lumen load --request-rate 4 --goodput ttft:500 tpot:50 --save-result

The options have the names of `vllm bench serve` wherever it has the same one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lumen.loadgen import prompts, report, spec
from lumen.loadgen.client import Prompt, Target, first_model
from lumen.loadgen.options import parse_extra_body, parse_goodput, parse_numbers, parse_pairs
from lumen.loadgen.record import Record
from lumen.loadgen.run import run
from lumen.loadgen.schedule import arrivals, lengths
from lumen.loadgen.statistics import summarize

TOKENIZER = "smollm2-135m"
MAX_ERRORS_SHOWN = 10


def add_parser(subparsers: Any) -> None:
    """Put `load` into the command line."""
    load = subparsers.add_parser(
        "load",
        help="measure a server under load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = load.add_argument
    add("--base-url", default="http://127.0.0.1:8000", help="by default %(default)s")
    add("--api", choices=("completions", "chat"), default="completions")
    add("--endpoint", default="", help="another path than /v1/completions or /v1/chat/completions")
    add("--model", default="", help="by default the first that the server lists")
    add("--header", nargs="*", default=[], metavar="KEY=VALUE")
    add("--timeout", type=float, default=600.0, help="longest silence of the server (s)")
    # how much, and when
    add("--num-prompts", type=int, default=None, help="by default 100, or all lines of the trace")
    add("--request-rate", type=float, default=math.inf, help="per second; inf sends all at once")
    add("--burstiness", type=float, default=1.0, help="shape of the gaps: 1 Poisson, below 1 bursts")
    add("--max-concurrency", "--users", type=int, default=None, help="at rate inf this is a closed loop")
    add("--trace", type=Path, help="JSONL of arrival (s), input_len, output_len")
    add("--trace-speed", type=float, default=1.0, help="2 replays twice as fast")
    add(
        "--num-warmups",
        type=int,
        default=0,
        help="requests that are sent before and forgotten; by default none",
    )
    add("--seed", type=int, default=0, help="of lengths, prompts and arrivals; by default %(default)s")
    # what is asked
    add(
        "--input-len",
        type=float,
        default=256,
        help="mean length of the prompts (tokens); by default %(default)s",
    )
    add(
        "--output-len",
        type=float,
        default=64,
        help="mean length of the answers (tokens); by default %(default)s",
    )
    add("--input-sigma", type=float, default=0.0, help="log-normal spread of the prompts; 0 keeps them equal")
    add("--output-sigma", type=float, default=0.0, help="the same for the answers")
    add("--prefix-len", type=int, default=0, help="tokens that all prompts have in common, on top")
    add("--prompt-file", type=Path, help="text to cut prompts from; by default Shakespeare's plays")
    add("--tokenizer", default=TOKENIZER, help="counts prompt tokens: smollm2-135m, a folder or a .gguf file")
    add("--stop-at-eos", action="store_true", help="by default ignore_eos is sent: answers have their length")
    add("--extra-body", default="{}", help="JSON that every request carries; it has the last word")
    # what is reported
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits on ttft, tpot, e2el")
    add("--percentile-metrics", default="ttft,tpot,itl,e2el", help="by default %(default)s")
    add("--metric-percentiles", default="99", help="a comma between them; by default %(default)s")
    add("--save-result", action="store_true")
    add("--save-detailed", action="store_true", help="with the numbers of every request")
    add("--result-dir", type=Path, default=Path("."))
    add("--result-filename", default="")
    add("--label", default=None)
    add("--metadata", nargs="*", default=[], metavar="KEY=VALUE")
    load.set_defaults(run=load_command)


def load_command(options: argparse.Namespace) -> None:
    """Run the benchmark, print the report, write the file. ValueError for options that make no sense."""
    slo = parse_goodput(options.goodput)
    percentiles = parse_numbers(options.metric_percentiles, "--metric-percentiles", 0, 100)
    blocks = report.shown_metrics(
        options.percentile_metrics.split(","),
        options.request_rate,
        options.max_concurrency,
        trace=options.trace is not None,
    )
    metadata = parse_pairs(options.metadata, "--metadata")
    if options.timeout <= 0:
        raise ValueError(f"--timeout must be above 0 seconds, got {options.timeout}.")
    if options.num_warmups < 0:
        raise ValueError(f"--num-warmups must not be negative, got {options.num_warmups}.")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        raise ValueError(f"--max-concurrency must be 1 or more, got {options.max_concurrency}.")
    target = Target(
        base_url=options.base_url,
        model=options.model,
        api=options.api,
        path=options.endpoint,
        extra_body=parse_extra_body(options.extra_body, options.stop_at_eos),
        headers=parse_pairs(options.header, "--header"),
        timeout_s=options.timeout,
    )
    schedule, lens, texts = _plan(options)
    tokenizer = load_tokenizer(options.tokenizer)
    target.count_tokens = lambda text: len(tokenizer.encode(text))
    asked = _prompts(options, lens, texts, tokenizer)
    records, seconds, drafted = asyncio.run(_measure(target, asked, schedule, options))
    summary = summarize(records, duration=seconds, goodput=slo or None, percentiles=percentiles) | drafted
    for record in [r for r in records if not r.ok][:MAX_ERRORS_SHOWN]:
        print(f"failed: {record.error}", file=sys.stderr)
    shown = {"request_rate": options.request_rate, "max_concurrency": options.max_concurrency}
    print(report.render(summary, metrics=blocks, **shown))
    if options.save_result or options.save_detailed:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        written = report.result(
            summary, records, date=date, api=options.api, model=target.model, tokenizer=options.tokenizer,
            burstiness=options.burstiness, label=options.label, metadata=metadata, detailed=options.save_detailed,
            **shown,
        )  # fmt: skip
        path = _file(options, target.model, date)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written), "utf-8")
        print(f"wrote {path}", file=sys.stderr)


async def _measure(
    target: Target, asked: Sequence[Prompt], schedule: list[float] | None, options: argparse.Namespace
) -> tuple[list[Record], float, dict[str, Any]]:
    """Records, the run's seconds, and what the server says of its speculative decoding in between."""
    from tqdm import tqdm

    async with target.session() as session:
        target.model = target.model or await first_model(session, target)
        before = await spec.fetch(session, target.base_url)
    with tqdm(total=len(asked), unit="req", file=sys.stderr, leave=False, disable=None) as bar:
        records, seconds = await run(
            target,
            asked,
            schedule,
            max_concurrency=options.max_concurrency,
            warmups=options.num_warmups,
            on_done=lambda record: bar.update(),
        )
    async with target.session() as session:
        after = await spec.fetch(session, target.base_url)
    return records, seconds, spec.difference(before, after)


def _plan(
    options: argparse.Namespace,
) -> tuple[list[float] | None, tuple[list[int], list[int]], list[str | None]]:
    """The schedule (None: closed loop), prompt and answer lengths, and texts that the trace brings itself."""
    count, seed = options.num_prompts, options.seed
    if count is not None and count < 1:
        raise ValueError(f"--num-prompts must be 1 or more, got {count}.")
    if options.trace is not None:
        if not math.isinf(options.request_rate):
            raise ValueError("A trace brings its own times: give --trace or --request-rate, not both.")
        times, rows = prompts.read_trace(options.trace, options.trace_speed)
        times, rows = times[:count], rows[:count]
        lens = [row["input_len"] for row in rows], [row["output_len"] for row in rows]
        return times, lens, [row["prompt"] for row in rows]
    count = count or 100
    wanted = (
        lengths(count, options.input_len, options.input_sigma, seed + 1),
        lengths(count, options.output_len, options.output_sigma, seed + 2),
    )
    times = arrivals(count, options.request_rate, options.burstiness, seed)
    closed = options.max_concurrency is not None and math.isinf(options.request_rate)
    return None if closed else times, wanted, [None] * count


def _prompts(
    options: argparse.Namespace,
    lens: tuple[list[int], list[int]],
    texts: Sequence[str | None],
    tokenizer: Any,
) -> list[Prompt]:
    asked, answers = lens
    if all(texts):
        counted = zip(texts, answers, strict=True)
        return [Prompt(text or "", len(tokenizer.encode(text)), answer) for text, answer in counted]
    if options.prompt_file is not None:
        source = options.prompt_file.read_text("utf-8")
    else:
        from lumen import assets

        source = assets.shakespeare()[0]
    made = prompts.from_text(
        source, [max(1, n) for n in asked], answers, tokenizer.encode, tokenizer.decode,
        seed=options.seed, prefix_len=options.prefix_len,
    )  # fmt: skip
    return [
        prompt if text is None else Prompt(text, len(tokenizer.encode(text)), prompt.output_len)
        for prompt, text in zip(made, texts, strict=True)
    ]


def load_tokenizer(name: str) -> Any:
    """A tokenizer alone: no weights are read and no torch is imported."""
    from lumen import assets
    from lumen.io.gguf_header import read_header
    from lumen.io.tokenizer_files import from_folder, from_gguf

    path = assets.path(name) if name in assets.ASSETS else Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return from_gguf(read_header(path), path.name)
    if path.is_dir():
        return from_folder(path)
    raise ValueError(f"There is no tokenizer {name!r}: use {TOKENIZER}, a folder or a .gguf file.")


def _file(options: argparse.Namespace, model: str, date: str) -> Path:
    many = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    label = options.label or ("openai" if options.api == "completions" else "openai-chat")
    rate = "trace" if options.trace else f"{options.request_rate}qps"
    name = options.result_filename or f"{label}-{rate}{many}-{model.split('/')[-1]}-{date}.json"
    return Path(options.result_dir) / name
