"""`lumen load`: measure any OpenAI-style server under load.

    lumen load --num-prompts 32                                 # all at once
    lumen load --request-rate 4 --burstiness 0.5                # open loop, in bursts
    lumen load --max-concurrency 8                              # closed loop of eight users
    lumen load --trace requests.jsonl --base-url http://host:8000 --api chat
    lumen load --request-rate 4 --goodput ttft:500 tpot:50 --save-result

The options have the names of `vllm bench serve` wherever it has the same one. The exit status is 0 when a request
succeeded (how many failed, and of what, is said on stderr), and 1 when none did.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lumen.arguments import quoted
from lumen.loadgen import outcome, report, spec
from lumen.loadgen.client import Prompt, Target, first_model
from lumen.loadgen.options import (
    TOKENIZER,
    add_options,
    parse_extra_body,
    parse_goodput,
    parse_numbers,
    parse_pairs,
)
from lumen.loadgen.plan import made_prompts, plan
from lumen.loadgen.record import Record
from lumen.loadgen.run import run
from lumen.loadgen.statistics import summarize


def add_parser(subparsers: Any) -> None:
    """Put `load` into the command line."""
    load = subparsers.add_parser(
        "load",
        help="measure a server under load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(load.add_argument)
    load.set_defaults(run=load_command)


def load_command(options: argparse.Namespace) -> int:
    """Run the benchmark, print the report, write the file; the exit status. ValueError for options without sense."""
    slo = parse_goodput(options.goodput)
    percentiles = parse_numbers(options.metric_percentiles, "--metric-percentiles", 0, 100)
    blocks = report.shown_metrics(
        options.percentile_metrics.split(","),
        options.request_rate,
        options.max_concurrency,
        trace=options.trace is not None,
    )
    metadata = parse_pairs(options.metadata, "--metadata")
    target = Target(
        base_url=options.base_url,
        model=options.model,
        api=options.api,
        path=options.endpoint,
        extra_body=parse_extra_body(options.extra_body, options.stop_at_eos),
        headers=parse_pairs(options.header, "--header"),
        timeout_s=options.timeout,
    )
    saved = options.save_result or options.save_detailed
    if saved:
        outcome.check(options)
    schedule, lens, texts = plan(options)
    tokenizer = load_tokenizer(options.tokenizer)
    target.count_tokens = lambda text: len(tokenizer.encode(text))
    asked = made_prompts(options, lens, texts, tokenizer)
    records, seconds, drafted = asyncio.run(_measure(target, asked, schedule, options))
    summary = summarize(records, duration=seconds, goodput=slo or None, percentiles=percentiles) | drafted
    shown = {"request_rate": options.request_rate, "max_concurrency": options.max_concurrency}
    print(report.render(summary, metrics=blocks, **shown), flush=True)
    status = outcome.verdict(records)
    if saved:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        written = report.result(
            summary, records, date=date, api=options.api, model=target.model, tokenizer=options.tokenizer,
            burstiness=options.burstiness, label=options.label, metadata=metadata, detailed=options.save_detailed,
            **shown,
        )  # fmt: skip
        outcome.write(outcome.file(options, target.model, date), written)
    return status


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


def load_tokenizer(name: str) -> Any:
    """A tokenizer alone: no weights are read and no torch is imported."""
    from lumen import assets
    from lumen.io.gguf_header import read_header
    from lumen.io.tokenizer_files import from_folder, from_gguf

    where = assets.path(name) if name in assets.ASSETS else Path(name).expanduser()
    try:
        if where.suffix == ".gguf" and where.is_file():
            return from_gguf(read_header(where), where.name)
        if where.is_dir():
            return from_folder(where)
    except OSError as error:
        raise ValueError(f"Cannot read the tokenizer {quoted(name)!r}: {error.strerror}.") from None
    raise ValueError(f"There is no tokenizer {quoted(name)!r}: use {TOKENIZER}, a folder or a .gguf file.")
