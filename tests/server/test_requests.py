"""Every field of a request: what reaches the engine, and the sentence for what may not."""

from __future__ import annotations

import asyncio

import pytest

from lumen.server.api.errors import ApiError
from lumen.server.api.expand import choice_seed, engine_requests
from lumen.server.api.fields import Fields, parse, shown
from lumen.server.api.options import ModelCard
from lumen.server.api.protocol import chat_request, completion_request

from .rig import FakeEngine, app_of, client_of, ids

CARD = ModelCard("tiny", 259, 256, frozenset({2, 0}), 12)
HELLO = [{"role": "user", "content": "hi"}]


def options(**fields):
    return completion_request(Fields({"model": "tiny", "prompt": "x", **fields}), CARD).options


def refused(**fields) -> str:
    with pytest.raises(ApiError) as caught:
        options(**fields)
    assert caught.value.status == 400 and caught.value.param is not None
    return caught.value.message


def test_defaults_are_openais():
    found = options()
    assert (found.params.temperature, found.params.top_p, found.n, found.max_tokens) == (1.0, 1.0, 1, None)
    assert found.eos_ids == {2, 0} and found.stop == () and not found.stream and found.logprobs is None
    (request,) = engine_requests("r", [[5]], found, CARD, 16)
    assert request.max_new_tokens == 16 and request.extra == () and request.params.seed is None


def test_null_is_the_default_for_every_field():
    names = ["temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "stream_options", "logprobs", "user",
             "max_tokens", "top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos", "priority", "cache_salt",
             "response_format", "presence_penalty", "allowed_token_ids", "bad_words", "typical_p", "echo", "best_of",
             "tools", "suffix"]  # fmt: skip
    assert options(**dict.fromkeys(names)) == options()


def test_each_field_reaches_the_engine():
    found = options(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1, typical_p=0.7,
        frequency_penalty=2, logit_bias={"5": 3, "258": -100}, seed=-4, max_tokens=9.0, min_tokens=2,
        stop=["a", "b", "a"], stop_token_ids=[77], priority=-2, cache_salt="tenant", logprobs=3,
        include_stop_str_in_output=True, skip_special_tokens=False,
    )  # fmt: skip
    (request,) = engine_requests("r", [[5, 6]], found, CARD, 16)
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.2, -1, 2)
    assert params.typical_p == 0.7 and params.logit_bias == {5: 3.0, 258: -100.0} and params.seed == -4
    assert (request.max_new_tokens, request.min_new_tokens, request.stop) == (9, 2, ("a", "b"))
    assert request.eos_ids == {2, 0, 77} and request.extra == ("tenant",) and request.priority == -2
    assert request.logprobs == 3 and request.keep_stop and not request.skip_special
    assert options(ignore_eos=True, stop_token_ids=[77]).eos_ids == {77}
    assert options(top_k=-1).params.top_k == 0 and options(top_k=2**62).params.top_k == 259


def test_chat_answers_may_fill_the_context():
    asked = chat_request(Fields({"messages": HELLO}), CARD)
    (request,) = engine_requests("r", [[5] * 200], asked.options, CARD, None)
    assert request.max_new_tokens == 56
    both = chat_request(Fields({"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6}), CARD)
    assert both.options.max_tokens == 6


def test_a_default_length_is_cut_to_the_context_and_an_asked_one_is_refused():
    (request,) = engine_requests("r", [[5] * 250], options(), CARD, 16)
    assert request.max_new_tokens == 6
    with pytest.raises(ApiError, match="6 at most") as caught:
        engine_requests("r", [[5] * 250], options(max_tokens=7), CARD, 16)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(ApiError, match="shorten the prompt"):
        engine_requests("r", [[5] * 256], options(), CARD, 16)
    with pytest.raises(ApiError, match="empty"):
        engine_requests("r", [[]], options(), CARD, 16)


def test_choices_have_seeds_of_their_own_and_the_first_keeps_its_seed():
    """Counting up would make choice 1 of seed 5 the first choice of seed 6."""
    seeds = [choice_seed(5, i) for i in range(50)]
    assert seeds[0] == 5 and len(set(seeds)) == 50 and not set(seeds) & {6, 7, 8}
    assert all(-(2**63) <= seed < 2**63 for seed in seeds) and choice_seed(None, 3) is None
    found = engine_requests("r", [[5], [6]], options(n=3, seed=5), CARD, 16)
    assert [r.params.seed for r in found] == seeds[
        :3
    ] * 2  # the same whether prompts are sent together or alone
    assert [r.id for r in found] == [f"r-{i}" for i in range(6)] and [r.prompt[0] for r in found] == [
        5
    ] * 3 + [6] * 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([5, 6], [[5, 6]]), ([[5], [6, 7]], [[5], [6, 7]])],
)
def test_the_four_kinds_of_prompt(prompt, expected):
    assert completion_request(Fields({"prompt": prompt}), CARD).prompts == expected


@pytest.mark.parametrize(
    "prompt",
    [[], 5, True, {}, [True], ["a", 5], [[5], "a"], [[5.0]], [[259]], [-1], [10**30], [[[5]]], [None]],
)
def test_no_other_prompt(prompt):
    assert "prompt" in refused(prompt=prompt)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("temperature", [-0.1, 2.1, "1", True, [], 10**400, 1e-300]),
        ("top_p", [-0.1, 1.1, "x"]),
        ("min_p", [-0.1, 1.1]),
        ("top_k", [-2, 1.5, 10**30, "5", False]),
        ("repetition_penalty", [0, 1e-30, -1, 3]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [{}, 9]),
        ("logit_bias", [[], {"259": 1}, {"-1": 1}, {"x": 1}, {"5": 101}, {"5": "a"}, {"5": None}, {"²": 1},
                        {"9" * 500: 1}, {str(i): 1 for i in range(1025)}]),
        ("seed", [2**63, 1.5, "a"]),
        ("n", [0, -1, 129, 13, "2"]),
        ("max_tokens", [0, -1, 2**63, 1.5, "9"]),
        ("min_tokens", [-1, "a"]),
        ("stop", ["", ["a"] * 5, [5], {}, [""], "x" * 1001, [["a"]]]),
        ("stop_token_ids", [[259], ["a"], 5, [True], [5] * 129]),
        ("logprobs", [6, -1, True]),
        ("priority", [1001, 10**30, 0.5]),
        ("cache_salt", ["", 5, "x" * 1025]),
        ("stream", ["true", 1]),
        ("stream_options", [{"include_usage": True}, [], 1]),
        ("echo", ["yes", 0]),
        ("typical_p", [-0.1, 1.1, "x"]),
        ("allowed_token_ids", [[], [259], [-1], "5", [True], {}]),
        ("bad_words", ["x", [""], [" "], [5], ["a"] * 257, ["x" * 101]]),
        ("best_of", [2, "a"]),
        ("response_format", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, "text", {}, []]),
        ("tools", [[{"type": "function"}], "x", 5]),
        ("suffix", ["end"]),
        ("structured_outputs", [{"regex": "a"}]),
    ],
)  # fmt: skip
def test_out_of_range_is_refused_with_the_field_s_name(field, bad):
    for value in bad:
        message = refused(**{field: value})
        assert field in message and message.endswith((".", "…")) and len(message) < 400


def test_fields_that_exclude_each_other():
    assert "lower it" in refused(min_tokens=5, max_tokens=4)
    assert "echo" in refused(echo=True, logprobs=1)
    assert "13 sequences" in refused(prompt=["x"] * 13)
    with pytest.raises(ApiError, match="logprobs: true"):
        chat_request(Fields({"messages": HELLO, "top_logprobs": 2}), CARD)
    assert refused(stream=True, stream_options={"include_usage": 1})


@pytest.mark.parametrize(
    "messages",
    [None, [], {}, "hi", ["hi"], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"content": "x"}],
     [{"role": "user", "content": 5}], [{"role": "user", "content": None}], [{"role": ["user"], "content": "x"}],
     [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], [{"role": "user", "content": ["x"]}],
     [{"role": "user", "content": [{"type": "text", "text": 5}]}], [{"role": "user", "content": {"a": []}}]],
)  # fmt: skip
def test_messages_that_are_none(messages):
    with pytest.raises(ApiError) as caught:
        chat_request(Fields({"messages": messages}), CARD)
    assert caught.value.status == 400 and "messages" in caught.value.message


def test_messages_in_parts_and_of_older_and_newer_roles():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = chat_request(
        Fields({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": parts},
                             {"role": "assistant", "content": None}]}), CARD,
    )  # fmt: skip
    assert found.chat.messages == [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"}, {"role": "assistant", "content": ""},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "JSON"), (b"{", "line 1"), (b"[]", "object"), (b"null", "object"), (b"\xff\xfe", "UTF-8"),
        (b'{"a": NaN}', "NaN"), (b'{"a": -Infinity}', "Infinity"), (b'{"a": 1e999}', "finite"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"), (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"), (b'{"a": [{"b": "x\\uDBFFy"}]}', "surrogate"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "deep"), (b"[" * 100_000, "deep"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"), (b"\xef\xbb\xbf{}", "JSON"), (b'{"a": 1} {}', "JSON"),
    ],
)  # fmt: skip
def test_what_is_no_json_object(raw, word):
    with pytest.raises(ApiError, match=word) as caught:
        parse(raw)
    assert caught.value.status == 400 and len(caught.value.message) < 200


def test_pairs_of_surrogates_are_characters():
    assert parse(b'{"a": "\\ud83d\\ude00 \\\\ud800"}') == {"a": "\U0001f600 \\ud800"}


def test_a_prompt_of_ids_and_a_long_text_reach_the_engine_as_they_are():
    engine = FakeEngine(max_len=60_000)

    async def go():
        async with client_of(app_of(engine)) as client:
            for prompt in ("é" * 20_001, ids("abc")):
                body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
                assert (await client.post("/v1/completions", json=body)).status_code == 200

    asyncio.run(go())
    assert engine.seen[0].prompt == ids("é" * 20_001) and engine.seen[1].prompt == ids("abc")


def test_a_value_is_shown_as_json_spells_it_on_one_short_line():
    said = [shown(value) for value in (True, None, "é", 1.5, {"a": 1}, [1], [], 2**64)]
    assert said == [
        "true",
        "null",
        '"é"',
        "1.5",
        "an object",
        "a list",
        "an empty list",
        "an integer of 65 bits",
    ]
    assert shown("a\u2028b\x85c") == '"a b c"' and len(shown("x" * 999)) == 61
