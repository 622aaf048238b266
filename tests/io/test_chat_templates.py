"""A dozen templates render for us as for transformers, with every field of every message; none of them without end."""

from __future__ import annotations

import itertools

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from lumen.io import chat_sandbox
from lumen.io.chat import BadTemplate, ChatTemplateError, render
from lumen.io.chat_budget import Limits

from . import endless, templates

USER = {"role": "user", "content": "What is 6 × 7?"}
CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "multiply", "arguments": {"b": [7, 8.5], "a": "é\n<&>", "nested": {"deep": None}}},
}
CHATS = {
    "one": [USER],
    "system": [{"role": "system", "content": "  Be brief. "}, USER],
    "turns": [USER, {"role": "assistant", "content": "<think>\n6·7\n</think>\n\n42 "}, USER | {"content": " Sure?\n"}],
    "tools": [
        {"role": "system", "content": "Use tools."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "content": "42", "tool_call_id": "abc123def", "name": "multiply"},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "Thanks 🙂", "name": "ann"},
    ],
    "thinking": [USER, {"role": "assistant", "content": "42", "reasoning": "six sevens"}, USER],
    "refused": [USER, {"role": "assistant", "content": "", "refusal": "I would rather not."}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]}],
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiplies.\nTwice.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "array", "items": {"type": "number"}},
                    "b": {"type": "object", "properties": {"c": {"type": ["string", "null"]}}},
                },
                "required": ["b", "a"],
            },
        },
    }
]
DOCUMENTS = [{"title": 'A "b"', "text": "word " * 30}, {"title": "é", "text": " short "}]
SMALL = Limits(steps=200_000, characters=2_000_000)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", templates.ALL)
def test_templates_render_as_in_transformers(name: str) -> None:
    """Or fail as there: a template that cannot take tool calls or parts says so to both."""
    rendered = 0
    for messages, tools, documents, opened in itertools.product(
        CHATS.values(), (None, TOOLS), (None, DOCUMENTS), (True, False)
    ):
        extra = {"enable_thinking": False, "style": "==="} if opened else {}
        clean = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            (want,), _ = render_jinja_template(
                [clean],
                tools,
                documents,
                templates.ALL[name],
                add_generation_prompt=opened,
                **SPECIAL,
                **extra,
            )
        except (jinja2.TemplateError, TypeError, AttributeError):
            with pytest.raises(ChatTemplateError):
                render(
                    templates.ALL[name], messages, tools=tools, documents=documents, special=SPECIAL, extra=extra,
                    add_generation_prompt=opened,
                )  # fmt: skip
            continue
        got = render(
            templates.ALL[name], messages, tools=tools, documents=documents, special=SPECIAL, extra=extra,
            add_generation_prompt=opened,
        )  # fmt: skip
        assert got == want
        rendered += 1
    assert rendered >= 8


def test_every_field_of_a_message_reaches_the_template() -> None:
    fields = {
        "tool_calls": [CALL],
        "tool_call_id": "x1",
        "name": "ann",
        "refusal": "no",
        "custom": {"a": [1]},
    }
    found = render("{{ messages | tojson }}", [{"role": "user", "content": "a", "gone": None, **fields}])
    assert found == chat_sandbox._tojson([{"role": "user", "content": "a", **fields}])


def test_a_date_is_one_moment() -> None:
    text = render("{{ strftime_now('%H:%M:%S.%f') }}{{ '|' }}{{ strftime_now('%H:%M:%S.%f') }}", [USER])
    assert text.split("|")[0] == text.split("|")[1]


@pytest.mark.parametrize("template", endless.LOOPS + endless.GROWTH + endless.KNOTS)
def test_work_and_text_are_bounded(template: str) -> None:
    """Each took all time or all memory, or would; none may spend more than its limits say."""
    with pytest.raises(BadTemplate, match="asks for too much"):
        render(template, [USER], limits=SMALL)


def test_the_limits_that_hold_without_being_asked() -> None:
    for template in (endless.LOOPS[0], "{{ 'a' * 10**10 }}"):
        with pytest.raises(BadTemplate, match=r"more than (10,000,000 steps|64,000,000 characters)"):
            render(template, [USER])


def test_the_limits_leave_room_for_the_longest_chats() -> None:
    """Twenty thousand messages; one of four million characters."""
    many = [USER, {"role": "assistant", "content": "42"}] * 10_000
    assert len(render(templates.QWEN_TOOLS, many, tools=TOOLS)) > 500_000
    assert (
        len(render(templates.LLAMA3_TOOLS, [{"role": "user", "content": "word " * 800_000}], special=SPECIAL))
        > 4e6 - 9
    )


def test_a_budget_is_one_renderings_own() -> None:
    template, limits = "{% for i in range(999) %}x{% endfor %}", Limits(10_000, 10_000)
    for _ in range(30):
        assert len(render(template, [USER], limits=limits)) == 999


@pytest.mark.parametrize("name", sorted(chat_sandbox._LEFT_OUT))
def test_filters_that_are_left_out_are_named(name: str) -> None:
    with pytest.raises(BadTemplate, match=f"No filter named '{name}'"):
        render("{{ 'a' | " + name + " }}", [USER])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'a'.translate({}) }}", "not offered"),
        ("{{ (5).to_bytes(10**9) }}", "not offered"),
        ("{{ lipsum(10**9) }}", "undefined"),
        ("{{ namespace(_x=1) }}{% set ns = namespace() %}{% set ns._x = 1 %}", "private name"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "not valid Jinja"),
        ("{{ " + "(" * 20_000 + " }}", "recursion|not valid"),
        ("{{ 'a' | truncate(2) }}", "expected length"),
        ("x" * 1_000_001, "the most are 1,000,000"),
        ("{{ ' budget' }}{{ budget }}{{ x | charge }}", "No filter named 'charge'"),
    ],
)  # fmt: skip
def test_other_faults_of_a_template_get_a_sentence(template: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        render(template, [USER])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"extra": {"messages": []}}, "may not hold 'messages'"),
        ({"extra": {"a b": 1}}, "may not hold 'a b'"),
        ({"extra": {"f": print}}, "holds a builtin_function"),
        ({"tools": "f"}, "tools are a list of objects"),
        ({"tools": [print]}, "tools are a list of objects"),
        ({"documents": ["d"]}, "documents are a list of objects"),
        ({"tools": [{1: 2}]}, "tools holds a dict"),
    ],
)
def test_bad_options_get_a_sentence(options, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ChatTemplateError, match=words):
        render("{{ messages }}", [USER], **options)


def test_deep_nesting_gets_a_sentence() -> None:
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="more than 100 levels"):
        render("{{ messages }}", [{**USER, "x": deep}])
