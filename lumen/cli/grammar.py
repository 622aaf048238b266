"""The grammar of `lumen`: its commands, their options, and the limits of each."""

from __future__ import annotations

from typing import Any

from ..arguments import MAX_SEED, Number, Parser, Whole, place, text
from ..loadgen import command as load
from ..server import command as serve
from .commands import DEFAULT_MODEL, chat_command, generate_command, info_command, roofline_command

FINITE = Number(-1e9, 1e9)  # what makes sense of it, SamplingParams says


def grammar() -> Parser:
    """All commands. Each sets `run`, a function of the parsed options that returns an exit status or None for 0."""
    top = Parser(prog="lumen", description="Run the course's models and measure this machine.")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, device, models").set_defaults(run=info_command)
    _roofline(commands.add_parser("roofline", help="measure this machine, predict the model on it"))
    generate = commands.add_parser("generate", help="answer a prompt")
    generate.add_argument("prompt", type=text)
    generate.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without the chat template"
    )
    generate.set_defaults(run=generate_command)
    _sampled(generate, length=128)
    chat = commands.add_parser("chat", help="talk to the model")
    chat.set_defaults(run=chat_command)
    _sampled(chat, length=256)
    serve.add_parser(commands)
    load.add_parser(commands)
    return top


def _roofline(command: Any) -> None:
    command.add_argument("--model", type=text, default=DEFAULT_MODEL)
    command.add_argument("--prompt-tokens", type=Whole(1, 10**7), default=512)
    command.add_argument(
        "--refresh", action="store_true", help="measure again instead of using what was kept"
    )
    command.set_defaults(run=roofline_command)


def _sampled(command: Any, length: int) -> None:
    """The options of an answer."""
    add = command.add_argument
    add("--model", type=place, default=DEFAULT_MODEL, help="a name, a folder, a .gguf file or a hub id")
    add("--max-new-tokens", type=Whole(), default=length)
    add("--temperature", type=FINITE, default=0.0, help="0 takes the likeliest token")
    add("--top-k", type=Whole(0), default=0)
    add("--top-p", type=FINITE, default=1.0)
    add("--min-p", type=FINITE, default=0.0)
    add("--repetition-penalty", type=FINITE, default=1.0)
    add("--seed", type=Whole(0, MAX_SEED), default=None)
    add("--stop", type=text, action="append", default=[], help="end before this text; may be repeated")
