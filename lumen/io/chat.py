"""From a list of messages to the text a chat model was trained on, through the model's own Jinja template.

A template comes with the model, so it is a program written by a stranger. It runs in jinja2's immutable
sandbox: it can read the messages and build text, it cannot reach Python objects, files or modules. Names
and settings are those that Hugging Face templates rely on (`trim_blocks`, `lstrip_blocks`, loop controls,
`tojson`, `raise_exception`, `strftime_now`, `{% generation %}`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]


class ChatTemplateError(ValueError):
    """The template or the messages cannot be turned into a prompt; the message says why."""


def render(
    template: str | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special: dict[str, str] | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> str:
    """The prompt as text. `special` has `bos_token`, `eos_token`; `add_generation_prompt` opens the answer.

    Special tokens written in a message are special to the tokenizer too: clean what strangers may send.
    Raises ChatTemplateError.
    """
    if not template:
        raise ChatTemplateError("This model has no chat template, so it takes plain text, not messages.")
    check_messages(messages)
    try:
        return _compile(template).render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **(special or {}),
        )
    except ChatTemplateError:
        raise
    except jinja2.exceptions.SecurityError as error:
        raise ChatTemplateError(
            f"The chat template tried to leave its sandbox ({error}); do not use this file."
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"The chat template is not valid Jinja: {error.message} (line {error.lineno})."
        ) from error
    except (
        jinja2.TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise ChatTemplateError(f"The chat template cannot render these messages: {error}.") from error
    except (AttributeError, MemoryError) as error:
        raise ChatTemplateError(f"The chat template failed on these messages: {error}.") from error


def check_messages(messages: Sequence[Message]) -> None:
    """A list of `{"role": str, "content": str}`, at least one; anything else is named."""
    if isinstance(messages, str | dict) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(
            'Messages are a list such as [{"role": "user", "content": "Hello"}], with at least one entry.'
        )
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f'Message {number} must be a dict with a "role" such as "user", it is {message!r:.60}.'
            )
        if not isinstance(message.get("content"), str):
            raise ChatTemplateError(
                f'Message {number} ({message["role"]}) must have "content" that is a string.'
            )


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks words to train on; its text passes through."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(f"The chat template refuses these messages: {message}.")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment.from_string(template)
