"""The official client over every endpoint and every class of error, on a real socket with a scripted engine."""

from __future__ import annotations

import threading
import time

import httpx
import openai
import pytest

from .rig import FakeEngine, app_of, get, ids, live, post

TEXT = "Hi 👋, naïve!"  # tokens are bytes, so characters come in pieces


def says(text: str = TEXT):
    return FakeEngine(lambda request: ids(text))


def client(server, **options) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60} | options
    )


@pytest.fixture(scope="module")
def engine():
    return says()


@pytest.fixture(scope="module")
def server(engine):
    with live(app_of(engine)) as running:
        yield running


@pytest.fixture(scope="module")
def api(server):
    with client(server) as found:
        yield found


HELLO = [{"role": "user", "content": "Hello"}]


def test_models(api):
    (model,) = api.models.list().data
    assert model.id == "tiny" and model.object == "model" and model.max_model_len == 256
    assert api.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("owner/other")


def test_chat(api, engine):
    answer = api.chat.completions.create(model="tiny", messages=HELLO)
    (choice,) = answer.choices
    assert choice.message.content == TEXT and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert (
        answer.object == "chat.completion"
        and answer.id.startswith("chatcmpl-")
        and answer._request_id == answer.id
    )
    prompt = engine.tokenizer.apply_chat(HELLO)
    assert list(engine.seen[-1].prompt) == prompt
    made = len(TEXT.encode()) + 1  # a byte is a token here, and so is the end
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), made)
    assert usage.total_tokens == len(prompt) + made and usage.prompt_tokens_details.cached_tokens == 0


def test_a_streamed_chat_says_the_role_then_the_text_then_why_it_ended(api):
    chunks = list(api.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant" and not chunks[0].choices[0].delta.content
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    pieces = [chunk.choices[0].delta.content for chunk in chunks[1:]]
    assert "".join(pieces) == TEXT and "\ufffd" not in "".join(pieces) and all(pieces[:-1])
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.object for chunk in chunks} == {
        "chat.completion.chunk"
    }
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_in_a_stream(api):
    ask = {"model": "tiny", "messages": HELLO, "stream": True}
    *chunks, last = api.chat.completions.create(**ask, stream_options={"include_usage": True})
    made = len(TEXT.encode()) + 1  # a byte is a token here, and so is the end
    assert last.choices == [] and last.usage.completion_tokens == made
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = api.chat.completions.create(**ask, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == made == last.usage.completion_tokens


def test_usage_is_null_on_the_wire_and_the_last_line_is_done(server):
    body = {"model": "tiny", "prompt": "x", "stream": True}
    url = f"{server.url}/v1/completions"
    plain = post(url, json=body)
    assert plain.headers["content-type"].startswith("text/event-stream") and "usage" not in plain.text
    counted = post(url, json=body | {"stream_options": {"include_usage": True}}).text
    events = counted.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]" and all(event.startswith("data: {") for event in events[:-1])
    assert all('"usage":null' in event for event in events[:-2]) and '"usage":{' in events[-2]


def test_choices(api, engine):
    answer = api.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=11)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 3 * (len(TEXT.encode()) + 1)
    assert answer.usage.prompt_tokens == len(engine.seen[-1].prompt)  # a prompt counts once
    assert len({request.params.seed for request in engine.seen[-3:]}) == 3
    streamed: dict[int, str] = {}
    for chunk in api.chat.completions.create(model="tiny", messages=HELLO, n=3, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {0: TEXT, 1: TEXT, 2: TEXT}


def test_stops(api):
    def ask(**fields):
        return api.completions.create(model="tiny", prompt="x", **fields).choices[0]

    assert ask(stop=", n").text == "Hi 👋" and ask(stop=["zz", "👋"]).finish_reason == "stop"
    cut = ask(stop="👋", extra_body={"include_stop_str_in_output": True})
    assert cut.text == "Hi 👋" and cut.stop_reason == "👋"
    cut = ask(extra_body={"stop_token_ids": [3 + ord(",")]})
    assert cut.text == "Hi 👋" and cut.finish_reason == "stop" and cut.stop_reason == 3 + ord(",")
    short = ask(max_tokens=2)
    assert short.text == "Hi" and short.finish_reason == "length" and short.stop_reason is None
    assert ask().stop_reason is None  # the model's own end


def test_chat_logprobs_show_fragments_as_bytes(api):
    ask = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    answer = api.chat.completions.create(**ask)
    content = answer.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == TEXT
    assert all(entry.logprob == -1.0 and len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].token == "H" and content[3].token == "\ufffd" and content[3].bytes == [0xF0]
    streamed = []
    for chunk in api.chat.completions.create(**ask, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content
    bare = api.chat.completions.create(model="tiny", messages=HELLO, logprobs=True)
    assert bare.choices[0].logprobs.content[0].top_logprobs == []


def test_completion_logprobs_and_offsets(api):
    ask = {"model": "tiny", "prompt": "x", "logprobs": 1}
    found = api.completions.create(**ask).choices[0].logprobs
    assert found.tokens[:4] == ["H", "i", " ", "bytes:\\xf0"] and found.token_logprobs[0] == -1.0
    assert found.top_logprobs[3] == {"bytes:\\xf0": -1.0}
    assert found.text_offset[:10] == [
        0,
        1,
        2,
        3,
        3,
        3,
        3,
        4,
        5,
        6,
    ]  # the hand is four bytes and one character
    streamed = {"tokens": [], "text_offset": []}
    for chunk in api.completions.create(**ask, stream=True):
        for name, values in streamed.items():
            values += getattr(chunk.choices[0].logprobs, name)
    assert streamed == {"tokens": found.tokens, "text_offset": found.text_offset}


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), (ids("ab"), ["ab"]), ([ids("a"), ids("é")], ["a", "é"])],
)
def test_completions_of_every_kind_of_prompt(api, prompt, echoed):
    answer = api.completions.create(model="tiny", prompt=prompt, n=2)
    assert [choice.text for choice in answer.choices] == [TEXT] * 2 * len(echoed)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(echoed)))
    assert answer.object == "text_completion" and answer.usage.prompt_tokens == len("".join(echoed).encode())
    answer = api.completions.create(model="tiny", prompt=prompt, echo=True)
    assert [choice.text for choice in answer.choices] == [text + TEXT for text in echoed]
    streamed = dict.fromkeys(range(len(echoed)), "")
    for chunk in api.completions.create(model="tiny", prompt=prompt, echo=True, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert list(streamed.values()) == [text + TEXT for text in echoed]


def test_text_and_ids(server):
    def ask(path, body, status=200):
        found = post(server.url + path, json=body)
        assert found.status_code == status
        return found.json()

    found = ask("/tokenize", {"prompt": "é!", "return_token_strs": True})
    assert found["tokens"] == ids("é!") and found["count"] == 3 and found["token_strs"][2] == "!"
    assert ask("/detokenize", {"model": "tiny", "tokens": [1, *found["tokens"]]}) == {
        "prompt": "<|im_start|>é!"
    }
    chat = ask("/tokenize", {"messages": HELLO})
    assert ask("/detokenize", {"tokens": chat["tokens"]})["prompt"].endswith("<|im_start|>assistant\n")
    shorter = ask("/tokenize", {"messages": HELLO, "add_generation_prompt": False})
    assert shorter["count"] < chat["count"] == len(chat["tokens"]) and chat["max_model_len"] == 256
    for body in ({}, {"prompt": 5}, {"messages": [1]}):
        assert ask("/tokenize", body, 400)["error"]["message"]
    for body in ({}, {"tokens": "ab"}, {"tokens": [259]}):
        assert ask("/detokenize", body, 400)["error"]["message"]
    ask("/tokenize", {"prompt": "x", "model": "other"}, 404)


# Errors


def error_of(caught) -> dict:
    error = caught.value.body
    assert set(error) == {"message", "type", "param", "code"} and error["message"].endswith(".")
    return error


def test_400_and_the_field_s_name(api):
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="tiny", messages=HELLO, temperature=3)
    assert error_of(caught)["param"] == "temperature" and error_of(caught)["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1000)
    assert error_of(caught)["code"] == "context_length_exceeded" and "256" in error_of(caught)["message"]
    with pytest.raises(openai.BadRequestError, match="constrained"):
        api.chat.completions.create(model="tiny", messages=HELLO, response_format={"type": "json_object"})


@pytest.mark.parametrize("stream", [False, True])
def test_400_when_the_engine_refuses(api, engine, stream):
    """Before the first byte of a stream, so that it is a status and not an event; and all prompts or none."""
    before = engine.counters.generation_tokens
    with pytest.raises(openai.BadRequestError, match="token 255"):
        api.completions.create(model="tiny", prompt=[[5], [255], [6]], stream=stream)
    assert not engine.has_work and engine.counters.generation_tokens == before


def test_404_model_and_path(api, server):
    with pytest.raises(openai.NotFoundError) as caught:
        api.chat.completions.create(model="gpt-9", messages=HELLO)
    assert error_of(caught)["code"] == "model_not_found" and "tiny" in error_of(caught)["message"]
    with pytest.raises(openai.NotFoundError, match="nothing at this path"):
        api.embeddings.create(model="tiny", input="x")
    for path in ("/", "/v1", "/v1/chat/completions/", "/v1/completions/x", "/%2e%2e/etc"):
        assert get(server.url + path).json()["error"]["type"] == "not_found_error"


def test_405_408_413_415(server):
    url = f"{server.url}/v1/completions"
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
        found = httpx.request(method, url)
        assert (
            found.status_code == 405
            and found.headers["allow"] == "POST"
            and "POST" in found.json()["error"]["message"]
        )
    assert post(f"{server.url}/v1/models").status_code == 405
    huge = post(url, content=b" " * (5 * 2**20), headers={"content-type": "application/json"})
    assert huge.status_code == 413 and "--max-body" in huge.json()["error"]["message"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        found = post(url, content=b"{}", headers={"content-type": kind})
        assert (
            found.status_code == 415 and "content-type: application/json" in found.json()["error"]["message"]
        )
    squeezed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert post(url, content=b"{}", headers=squeezed).status_code == 415
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert post(url, content=b'{"model": "tiny", "prompt": "x"}', headers=kind).status_code == 200


def test_401():
    with live(app_of(says(), api_key="sesame")) as server:
        for key in ("wrong", "sesam", "sesame1", "Sesame", "ключ".encode().decode("latin-1")):
            found = get(
                f"{server.url}/v1/models", headers=[(b"authorization", b"Bearer " + key.encode("latin-1"))]
            )
            assert found.status_code == 401 and "wrong" in found.json()["error"]["message"]
        with client(server, api_key="wrong") as api, pytest.raises(openai.AuthenticationError) as caught:
            api.models.list()
        assert error_of(caught)["code"] == "invalid_api_key"
        with client(server, api_key="sesame") as api:
            assert api.models.list().data and api.completions.create(model="tiny", prompt="x").choices
        for path, status in (
            ("/tokenize", 401),
            ("/v1/models", 401),
            ("/nope", 401),
            ("/health", 200),
            ("/metrics", 200),
        ):
            assert get(server.url + path).status_code == status
        header = {"authorization": "Basic sesame"}
        assert get(f"{server.url}/v1/models", headers=header).status_code == 401


def test_429_says_when_to_come_back_and_the_client_does():
    gate = threading.Event()
    engine = FakeEngine(lambda r: ids(TEXT), max_seqs=2, before_step=lambda: gate.wait(60))
    with live(app_of(engine, max_queue=1)) as server, client(server) as api:
        pending = [
            threading.Thread(target=api.completions.create, kwargs={"model": "tiny", "prompt": "x"})
            for _ in range(3)
        ]
        for thread in pending:
            thread.start()
        server.wait_until(lambda: server.service.worker.num_live == 3)
        with pytest.raises(openai.RateLimitError) as caught:
            api.completions.create(model="tiny", prompt="x")
        assert (
            error_of(caught)["code"] == "rate_limit_exceeded"
            and caught.value.response.headers["retry-after"] == "1"
        )
        with pytest.raises(
            openai.BadRequestError, match="n must be"
        ):  # would never fit, so waiting is no cure
            api.completions.create(model="tiny", prompt="x", n=4)
        assert get(f"{server.url}/health").status_code == 200
        threading.Timer(0.3, gate.set).start()
        assert (
            client(server, max_retries=2).completions.create(model="tiny", prompt="x").choices[0].text == TEXT
        )
        for thread in pending:
            thread.join()
        server.wait_until(lambda: server.service.worker.num_live == 0)


def test_500_503_and_an_error_in_the_middle_of_a_stream():
    steps = []

    def fail_at_the_sixth():
        steps.append(1)
        time.sleep(0.02)  # so that the first pieces are on their way
        if len(steps) == 6:
            raise RuntimeError("secret detail")

    with (
        live(app_of(FakeEngine(lambda r: ids(TEXT), before_step=fail_at_the_sixth))) as server,
        client(server) as api,
    ):
        stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="engine failed") as caught:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        assert TEXT.startswith(text) and text and "secret" not in str(caught.value.body)
        with pytest.raises(openai.InternalServerError) as caught:
            api.completions.create(model="tiny", prompt="x")
        assert caught.value.status_code == 503 and "restarted" in error_of(caught)["message"]
        assert get(f"{server.url}/health").status_code == 503
        assert get(f"{server.url}/metrics").status_code == 200


def test_500_of_a_whole_answer():
    def fail():
        raise MemoryError

    with live(app_of(FakeEngine(before_step=fail))) as server, client(server) as api:
        with pytest.raises(openai.InternalServerError) as caught:
            api.completions.create(model="tiny", prompt="x", n=3)
        assert caught.value.status_code == 500 and error_of(caught)["code"] == "engine_failed"


def test_web_pages_may_call_only_if_they_are_named():
    ask = {"origin": "https://page.example", "access-control-request-method": "POST"}
    with live(app_of(says())) as server:
        found = httpx.options(f"{server.url}/v1/completions", headers=ask)
        assert found.status_code == 405 and "access-control-allow-origin" not in found.headers
    with live(app_of(says(), origins=("https://page.example",), api_key="k")) as server:
        found = httpx.options(f"{server.url}/v1/completions", headers=ask)
        assert found.headers["access-control-allow-origin"] == "https://page.example"
        found = httpx.options(
            f"{server.url}/v1/completions", headers=ask | {"origin": "https://other.example"}
        )
        assert found.status_code == 400 and "access-control-allow-origin" not in found.headers
