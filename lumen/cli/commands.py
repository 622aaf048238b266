"""What each command does: `generate` and `chat` with a model, `info` and `roofline` with this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..decode import Completion
    from ..hardware import Chip
    from ..sampling import SamplingParams

DEFAULT_MODEL = "smollm2-135m"


def report(completion: Completion, model: Any, chip: Chip | None) -> str:
    """The line under an answer: speed, bytes per token, achieved bandwidth and its share of the measured ceiling.

    Bytes per token are the weights plus the cache at the middle of the answer. Without a measured `chip` the
    share is left out.
    """
    from .. import cost

    made, first = len(completion.token_times), completion.ttft
    if first is None:
        return "no token was made"
    parts = [f"{completion.num_prompt_tokens} prompt tokens, first token after {1e3 * first:.0f} ms"]
    if completion.tpot:
        dtype = next(model.parameters()).dtype
        context = completion.num_prompt_tokens + made // 2
        moved = cost.step_bytes(model.config, 1, context, dtype)
        num_bytes = moved.weights + moved.cache_read + moved.cache_write
        parts.append(f"{made} tokens at {1 / completion.tpot:.1f} tokens/s")
        parts.append(f"{num_bytes / 1e6:.0f} MB per token, {num_bytes / completion.tpot / 1e9:.1f} GB/s")
        if chip is not None:
            parts.append(f"{100 * cost.mbu(num_bytes, completion.tpot, chip):.0f} % of the measured ceiling")
    return " · ".join(parts)


def _params(options: argparse.Namespace) -> SamplingParams:
    from ..sampling import SamplingParams

    return SamplingParams(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )


def _answer(
    loaded: Any, prompt: list[int], params: SamplingParams, options: argparse.Namespace
) -> Completion:
    """Generate one answer, printing it as it comes."""
    from ..decode import generate

    def show(row: int, token: int, text: str) -> None:
        print(text, end="", flush=True)

    (done,) = generate(
        loaded.model,
        [prompt],
        options.max_new_tokens,
        params,
        tokenizer=loaded.tokenizer,
        stop=options.stop,
        on_token=show,
    )
    print(flush=True)
    return done


def _ceiling() -> Chip:
    from ..hardware import measure

    return measure()


def generate_command(options: argparse.Namespace) -> None:
    from ..io.load import load

    params = _params(options)  # before a model is fetched for it
    loaded, chip = load(options.model), _ceiling()
    if options.raw or not loaded.tokenizer.chat_template:
        prompt = loaded.tokenizer.encode(options.prompt)
    else:
        prompt = loaded.tokenizer.apply_chat([{"role": "user", "content": options.prompt}])
    if not prompt:
        raise ValueError("The prompt is empty: give the model one token at least to continue from.")
    done = _answer(loaded, prompt, params, options)
    print(report(done, loaded.model, chip), file=sys.stderr)


def chat_command(options: argparse.Namespace) -> None:
    """Every turn runs the whole conversation through the model again; chapter 06 keeps what was computed."""
    from ..io.load import load

    params = _params(options)
    loaded, chip = load(options.model), _ceiling()
    if not loaded.tokenizer.chat_template:
        raise ValueError(
            f"{options.model} has no chat template; use `lumen generate`, which continues a text."
        )
    messages: list[dict[str, str]] = []
    while True:
        try:
            said = input("you> ").strip()
        except EOFError:
            print()
            return
        if not said:
            return
        turn = [*messages, {"role": "user", "content": said}]
        try:
            done = _answer(loaded, loaded.tokenizer.apply_chat(turn), params, options)
        except ValueError as error:  # the conversation no longer fits: say so and keep what was said before
            print(f"lumen: {error}", file=sys.stderr)
            continue
        messages = [*turn, {"role": "assistant", "content": done.text}]
        print(report(done, loaded.model, chip), file=sys.stderr)


def info_command(options: argparse.Namespace) -> None:
    import torch

    from .. import assets, cost
    from ..hardware import kernel_times
    from ..hardware.identity import versions
    from ..io.load import CHECKPOINTS
    from ..models import CONFIGS
    from ..runtime import default_dtype, device, processor_name

    on = device()
    dtype = default_dtype(on)
    print(f"device     {processor_name(on)} ({on.type}), computing in {str(dtype).removeprefix('torch.')}")
    print("versions   " + ", ".join(f"{name} {number}" for name, number in versions().items()))
    print(f"cache      {assets.cache_dir()}")
    for name in (DEFAULT_MODEL, "gptlite"):
        config = CONFIGS[name]
        total = cost.parameters(config).total
        size, token = cost.weight_bytes(config, dtype), cost.kv_bytes_per_token(config, dtype)
        there = (
            "" if name != "gptlite" or (CHECKPOINTS / "gptlite.safetensors").exists() else ", not trained yet"
        )
        print(
            f"model      {name}: {total / 1e6:.1f} M parameters, {size / 1e6:.0f} MB read per token, "
            f"{token / 1024:.1f} KiB of cache per token of context{there}"
        )
    if on.type == "cpu" and dtype == torch.float32:
        chosen = kernel_times.described(kernel_times.kept())
        none = [f"the rule of thumb, until {DEFAULT_MODEL} is first loaded"]
        for place, line in enumerate(chosen or none):
            print(f"{'' if place else 'kernels':<10} {line}")


def roofline_command(options: argparse.Namespace) -> None:
    from .. import cost
    from ..hardware import measure, ridge
    from ..models import CONFIGS
    from ..runtime import default_dtype, device

    if options.model not in CONFIGS:
        raise ValueError(f"There is no configuration {options.model!r}; there are {', '.join(CONFIGS)}.")
    config, dtype = CONFIGS[options.model], default_dtype(device())
    chip = measure(refresh=options.refresh)
    print(f"{chip.name}: reads {chip.bandwidth / 1e9:.1f} GB/s")
    for name, rate in chip.flops.items():
        print(f"  {name:>4} matmul {rate / 1e9:8.0f} GFLOP/s, ridge at {ridge(chip, name):.1f} FLOP per byte")
    prompt = options.prompt_tokens
    first = cost.predict_prefill(config, chip, prompt, dtype=dtype)
    step = cost.predict_decode(config, chip, prompt, dtype=dtype)
    bound = cost.weight_bytes(config, dtype) / chip.bandwidth
    print(f"{config.name} with a prompt of {prompt} tokens, predicted:")
    print(f"  first token after {1e3 * first.seconds:.0f} ms, {first.bound_by}-bound")
    print(
        f"  then {1e3 * step.seconds:.1f} ms a token ({1 / step.seconds:.0f} tokens/s), {step.bound_by}-bound;"
    )
    print(f"  reading the weights alone takes {1e3 * bound:.1f} ms")
