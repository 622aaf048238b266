"""Clients that leave, clients that read slowly, signals, and failures: nothing hangs and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest

from lumen.serve.request import Delta
from lumen.server.api import shapes
from lumen.server.deltas import joined

from .rig import FakeEngine, app_of, client_of, get, ids, live, post, post_bytes

ASK = {"model": "tiny", "prompt": "x", "max_tokens": 200}


def endless(pace: float = 0.002, **options) -> FakeEngine:
    return FakeEngine(lambda request: ids("a") * 100_000, before_step=lambda: time.sleep(pace), **options)


def raw_post(url: str, body: dict, path: str = "/v1/completions") -> socket.socket:
    """A request on a bare socket, nothing read yet."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(post_bytes(path, body))
    return connection


def idle(server) -> bool:
    worker = server.service.worker
    return not worker._engine.has_work and worker.num_live == 0 and not worker._live


@contextmanager
def clean(engine, **settings):
    """A server that must be empty at the end: no sequence in the engine, no answer open, no task but its own."""
    with live(app_of(engine, **settings)) as server:
        get(f"{server.url}/health")
        before = server.tasks()
        yield server
        server.wait_until(lambda: idle(server))
        server.wait_until(lambda: server.tasks() <= before)
        assert server.service.metrics._timelines == {}


@pytest.mark.parametrize(
    "body", [ASK | {"stream": True}, ASK, ASK | {"n": 3}, ASK | {"prompt": ["x"] * 4, "stream": True}]
)
def test_a_client_that_leaves_gives_its_place_back_at_once(body):
    engine, body = endless(max_len=100_000), body | {"max_tokens": 50_000}
    with clean(engine) as server:
        for linger in (0.0, 0.03):
            connection = raw_post(server.url, body)
            server.wait_until(lambda: engine.has_work)
            time.sleep(linger)
            connection.close()
            server.wait_until(lambda: not engine.has_work)
        assert engine.counters.generation_tokens < 90_000  # of 100,000 or more that were asked for
        text = get(f"{server.url}/metrics").text
        count = 2 * max(body.get("n", 1), len(body["prompt"]))
        assert f'lumen:request_success_total{{finished_reason="abort",model_name="tiny"}} {count}.0' in text


def test_a_client_that_leaves_while_it_waits():
    gate = threading.Event()
    engine = FakeEngine(before_step=lambda: gate.wait(600), max_seqs=1)
    with clean(engine) as server:
        connections = [raw_post(server.url, ASK) for _ in range(5)]
        server.wait_until(lambda: server.service.worker.num_live == 5)
        for connection in connections[1:]:
            connection.close()
        server.wait_until(lambda: server.service.worker.num_live == 1)
        gate.set()
        assert b"200 OK" in connections[0].recv(1000)
        connections[0].close()


def test_a_half_sent_request_takes_no_place_and_is_no_failure_of_ours(capfd):
    with clean(endless()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)))
        connection.sendall(post_bytes("/v1/completions", ASK)[:-5])
        time.sleep(0.05)
        assert server.service.worker.num_live == 0
        connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_slow_reader_stops_nobody_and_is_given_up():
    """It holds its own answer and nothing else; the engine is done long before it reads."""
    engine = FakeEngine(lambda request: ids("a") * 100_000, max_len=1_000_000)
    with clean(engine, patience=4.0) as server:
        # with log-probabilities the answer has some 20 MB, more than the buffers of any socket
        slow = raw_post(server.url, ASK | {"stream": True, "max_tokens": 20_000, "logprobs": 5, "n": 3})
        quick = post(f"{server.url}/v1/completions", json=ASK)
        assert quick.json()["choices"][0]["text"] == "a" * 200
        server.wait_until(lambda: not engine.has_work)
        assert server.service.worker.num_live == 3  # it still counts, so memory has a bound
        server.wait_until(lambda: idle(server))
        slow.close()


def test_what_a_late_reader_gets_is_the_whole_answer():
    parts = [
        Delta("a", (1,), "x"),
        Delta("a", (2, 3), time=2.0),
        Delta("a", text="y", finish_reason="stop", time=3.0),
    ]
    whole = joined(parts)
    assert (
        whole.tokens == (1, 2, 3)
        and whole.text == "xy"
        and whole.finish_reason == "stop"
        and whole.time == 3.0
    )


def test_a_signal_lets_running_requests_finish():
    engine = FakeEngine(lambda request: ids("a") * 50, before_step=lambda: time.sleep(0.01))
    with live(app_of(engine, grace=60.0)) as server:
        found = []
        thread = threading.Thread(target=lambda: found.append(post(f"{server.url}/v1/completions", json=ASK)))
        thread.start()
        server.wait_until(lambda: engine.has_work)
        with httpx.Client(timeout=600) as other:  # a connection that was open before, as a load balancer's
            server.signal()
            for path in ("/health", "/v1/completions"):
                refused = other.request("GET" if path == "/health" else "POST", server.url + path)
                assert refused.status_code == 503 and "shutting down" in refused.json()["error"]["message"]
        assert get(f"{server.url}/health").status_code == 503  # a new connection still gets an answer
        thread.join(600)
        assert found[0].json()["choices"][0]["text"] == "a" * 50
        server.thread.join(600)
        assert not server.thread.is_alive() and not server.service.worker._thread.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_finish_in_time_is_aborted_and_told(stream):
    engine = endless()
    with live(app_of(engine, grace=0.1)) as server:
        found = []

        def ask():
            found.append(post(f"{server.url}/v1/completions", json=ASK | {"stream": stream, "n": 2}))

        thread = threading.Thread(target=ask)
        thread.start()
        server.wait_until(lambda: engine.counters.generation_tokens > 4)
        server.signal()
        thread.join(600)
        assert found[0].status_code == 200
        if stream:
            events = found[0].text.removesuffix("\n\n").split("\n\n")
            assert events[-1] == "data: [DONE]"
            choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
        else:
            choices = found[0].json()["choices"]
        assert [c["index"] for c in choices if c["finish_reason"] == "abort"] == [0, 1]
        assert sum(len(choice["text"]) for choice in choices) >= 4
        server.thread.join(600)
        assert not server.thread.is_alive() and not engine.has_work


def test_a_second_signal_does_not_wait():
    with live(app_of(endless(max_len=100_000), grace=36_000.0)) as server:
        connection = raw_post(server.url, ASK | {"max_tokens": 90_000, "stream": True})
        server.wait_until(lambda: server.service.worker.num_live == 1)
        server.signal()
        time.sleep(0.05)
        assert server.thread.is_alive()
        server.signal()
        server.thread.join(120)  # the answer alone would take three minutes and more
        assert not server.thread.is_alive()
        connection.close()


def test_an_engine_that_fails_leaves_nobody_waiting():
    gate = threading.Event()

    def fail_when_told():
        if gate.wait(600):
            raise RuntimeError("broken")

    engine = FakeEngine(before_step=fail_when_told, max_seqs=2)
    with live(app_of(engine)) as server:
        found = []

        def ask(stream):
            found.append(post(f"{server.url}/v1/completions", json=ASK | {"stream": stream}))

        threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(6)]
        for thread in threads:
            thread.start()
        server.wait_until(lambda: server.service.worker.num_live == 6)
        gate.set()
        for thread in threads:
            thread.join(600)
        assert len(found) == 6 and all("engine failed" in answer.text for answer in found)
        assert {answer.status_code for answer in found} <= {200, 500}
        assert get(f"{server.url}/health").status_code == 503
        server.wait_until(lambda: server.service.worker.num_live == 0)


def test_the_app_alone_ends_its_engine_with_its_lifespan():
    engine = FakeEngine()
    app = app_of(engine)

    async def go():
        async with client_of(app) as client:
            assert (await client.get("/health")).status_code == 200
        assert not app.state.service.worker._thread.is_alive()

    asyncio.run(go())


def test_bugs_of_ours_are_a_500_without_a_trace(monkeypatch):
    with live(app_of(FakeEngine())) as server:
        monkeypatch.setattr(shapes, "_end", lambda delta, options: 1 / 0)
        body = ASK
        whole = post(f"{server.url}/v1/completions", json=body)
        assert whole.status_code == 500 and whole.json()["error"]["type"] == "server_error"
        streamed = post(f"{server.url}/v1/completions", json=body | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n") and '"server_error"' in streamed.text
        for answer in (whole, streamed):
            assert "ZeroDivision" not in answer.text and "Traceback" not in answer.text
        server.wait_until(lambda: idle(server))
