"""From a list of messages to the text a chat model was trained on, through the model's own Jinja template.

A template comes with the model, so it is a program written by a stranger. It runs in a sandbox
(`lumen.io.chat_sandbox`): it can read the messages and build text, it cannot reach Python objects, files or
modules, and it has a budget of work and text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2

from .chat_budget import MOST_SOURCE, USUAL, Budget, Limits, OverBudget
from .chat_sandbox import BUDGET, Sandbox

Message = dict[str, Any]

_REASONING = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # names for it; templates read the first, some the second
_FIXED = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")


class ChatTemplateError(ValueError):
    """The template or the messages cannot be turned into a prompt; the message says why."""


class BadTemplate(ChatTemplateError):
    """The fault is the template's, whatever the messages are: no Jinja, a way out of the sandbox, no end in sight."""


@dataclass(frozen=True)
class Prompt:
    """A chat ready to be rendered. `given` is what strangers wrote, plain JSON values; `fixed` what the model's files
    and the caller say. `now` is kept, so that two renderings are of one moment."""

    template: str
    given: dict[str, Any]
    fixed: dict[str, Any]
    limits: Limits
    now: datetime = field(default_factory=datetime.now)

    def text(self, given: dict[str, Any] | None = None) -> str:
        """The prompt, of `given` if that is not None. Raises ChatTemplateError."""
        variables = {**self.fixed, **(self.given if given is None else given)}
        variables |= {
            "strftime_now": self.now.strftime,
            "raise_exception": _raise_exception,
            BUDGET: Budget(self.limits),
        }
        try:
            return _compile(self.template).render(variables)
        except ChatTemplateError:
            raise
        except jinja2.exceptions.SecurityError as error:
            raise BadTemplate(
                f"The chat template tried to leave its sandbox ({error}); do not use this file."
            ) from error
        except (jinja2.TemplateSyntaxError, SyntaxError) as error:
            raise BadTemplate(
                f"The chat template is not valid Jinja: {getattr(error, 'message', None) or error} "
                f"(line {error.lineno})."
            ) from error
        except OverBudget as error:
            raise BadTemplate(
                f"The chat template asks for too much on these messages: {error}. Send less, or use another template."
            ) from error
        except Exception as error:  # a stranger's program may raise anything
            raise ChatTemplateError(f"The chat template cannot render these messages: {error}.") from error


def prompt(
    template: str | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special: Mapping[str, str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    extra: Mapping[str, Any] | None = None,
    limits: Limits = USUAL,
) -> Prompt:
    """What `template` is to render. `special` has `bos_token`, `eos_token`; `add_generation_prompt` opens the answer.

    `tools` and `documents` are lists of objects, `extra` holds further names that the template may ask for. All
    fields of the messages reach it, but for those that are None. Raises ChatTemplateError.
    """
    if not template:
        raise ChatTemplateError("This model has no chat template, so it takes plain text, not messages.")
    if len(template) > MOST_SOURCE:
        raise BadTemplate(
            f"The chat template has {len(template):,} characters, the most are {MOST_SOURCE:,}."
        )
    check_messages(messages)
    plain = [_with_reasoning(_plain(message, f"Message {i}")) for i, message in enumerate(messages)]
    extra = _plain(dict(extra or {}), "extra")
    if taken := [name for name in extra if name in _FIXED or not name.isidentifier()]:
        raise ChatTemplateError(
            f"extra may not hold {taken[0]!r}; its names are those that a template asks for."
        )
    given = {**extra, "messages": plain, "tools": _objects(tools, "tools")}
    given["documents"] = _objects(documents, "documents")
    fixed = {"add_generation_prompt": add_generation_prompt, **(special or {})}
    return Prompt(template, given, fixed, limits)


def render(template: str | None, messages: Sequence[Message], **options: Any) -> str:
    """The prompt as text; `options` are those of `prompt`."""
    return prompt(template, messages, **options).text()


def check_messages(messages: Sequence[Message]) -> None:
    """A list of objects with a role and content, at least one; anything else is named.

    Content is a string or a list of `{"type": "text", "text": str}`. It may be missing where there is something else to
    say: `tool_calls`, `refusal`, reasoning.
    """
    if isinstance(messages, str | dict) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(
            'Messages are a list such as [{"role": "user", "content": "Hello"}], with at least one entry.'
        )
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f'Message {number} must be a dict with a "role" such as "user", it is {message!r:.60}.'
            )
        content = message.get("content")
        if content is None:
            if not any(message.get(name) for name in ("tool_calls", "function_call", "refusal", *_REASONING)):
                raise ChatTemplateError(
                    f'Message {number} ({message["role"]}) must have "content" that is a string.'
                )
        elif isinstance(content, list):
            for part in content:
                _check_part(part, number, message["role"])
        elif not isinstance(content, str):
            raise ChatTemplateError(
                f'Message {number} ({message["role"]}) must have "content" that is a string or a list of text parts, '
                f"not {type(content).__name__}."
            )


def _check_part(part: Any, number: int, role: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind != "text" or not isinstance(part.get("text"), str):
        raise ChatTemplateError(
            f'Message {number} ({role}): a part of "content" is {{"type": "text", "text": "..."}}, since this model '
            f"reads text only; got {kind!r:.60}."
        )


def _with_reasoning(message: Message) -> Message:
    """Without fields that are None, and with its reasoning under the names that templates read, as in transformers."""
    message = {name: value for name, value in message.items() if value is not None}
    found = next((message[name] for name in _REASONING if name in message), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _objects(values: Sequence[Mapping[str, Any]] | None, name: str) -> list[Any] | None:
    if values is None:
        return None
    if isinstance(values, str | Mapping) or not all(isinstance(value, Mapping) for value in values):
        raise ChatTemplateError(f"{name} are a list of objects.")
    return [_plain(dict(value), name) for value in values]


def _plain(value: Any, at: str, depth: int = 0) -> Any:
    """A copy of `value` in plain JSON types: an object with methods would be a door in the sandbox."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass, the text alone
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if depth > 100:
        raise ChatTemplateError(f"{at} is nested more than 100 levels deep; a chat needs a handful.")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(inner, at, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, at, depth + 1) for inner in value]
    raise ChatTemplateError(
        f"{at} holds a {type(value).__name__}; a template reads strings, numbers, lists and objects with names."
    )


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(f"The chat template refuses these messages: {message}.")


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    return Sandbox().from_string(template)
