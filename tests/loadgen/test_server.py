"""The client against a real socket: hang-ups, refusals, silence, reuse of connections, and the command itself."""

from __future__ import annotations

import asyncio
import json

import pytest

from lumen import cli
from lumen.loadgen import command
from lumen.loadgen.client import Prompt, Target, ask
from lumen.loadgen.run import run
from tests.serve.scripted import DONE, HANG_UP, Seen, delta, event, serving, text, usage

PROMPTS = [Prompt(f"question {i}", 4, 3) for i in range(4)]
ANSWER = [text("a"), 0.03, text("b"), text("c", "length") + usage(4, 3) + DONE]


def measure(*scripts, count=1, status=200, **fields):
    """Run `count` requests of one user against scripts; (records, what the server saw)."""

    async def go():
        async with serving(*scripts, status=status) as seen:
            target = Target(seen.url, "scripted", **fields)
            records, _ = await run(target, PROMPTS[:count], max_concurrency=1)
            return records, seen

    return asyncio.run(go())


def test_pauses_are_found_where_they_were():
    """Slack upwards only: a loaded machine is late, never early."""
    (got,), seen = measure([0.05, text("a")[:20], 0.05, text("a")[20:], 0.1, text("b", "stop") + DONE])
    assert got.ok and 0.1 <= got.ttft < 2 and 0.1 <= got.itl[0] < 2 and len(got.itl) == 1
    assert seen.bodies[0] == {
        "model": "scripted", "prompt": "question 0", "max_tokens": 3, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_a_hang_up_midway_is_counted_and_the_next_request_works():
    records, _ = measure([text("a"), text("b")[:9], HANG_UP], [HANG_UP], ANSWER, count=3)
    assert [r.ok for r in records] == [False, False, True]
    assert "Error" in records[0].error and records[0].text == "a"
    assert records[2].output_len == 3


def test_a_hang_up_behind_the_finish_reason_took_nothing_away():
    (got,), _ = measure([text("a"), text("b", "stop"), 0.02, HANG_UP])
    assert got.ok and got.text == "ab"


@pytest.mark.parametrize(
    "body, says",
    [
        (b'{"error": {"message": "queue full", "type": "x", "param": null, "code": 429}}', "HTTP 429: queue full"),
        (b'{"detail": "no"}', "HTTP 429: no"),
        (b"<html>busy</html>", "HTTP 429: <html>busy</html>"),
        (b"", "HTTP 429: X"),
    ],
)  # fmt: skip
def test_a_refusal_keeps_the_servers_sentence(body, says):
    (got,), _ = measure([body] if body else [], status=429)
    assert not got.ok and got.error == says


def test_silence_ends_at_the_timeout():
    (got,), _ = measure([text("a"), 3600.0, text("b", "stop")], timeout_s=3.0)
    assert not got.ok and "Timeout" in got.error and got.text == "a"


def test_nobody_listening_is_an_error_of_the_request():
    async def go():
        target = Target("http://127.0.0.1:9", "m")
        async with target.session() as session:
            return await ask(session, target, PROMPTS[0])

    got = asyncio.run(go())
    assert not got.ok and "Connect" in got.error


def test_connections_are_used_again():
    records, seen = measure(ANSWER, count=4)
    assert all(r.ok for r in records) and seen.connections == 1


def test_chat_sends_messages_and_the_extra_body_has_the_last_word():
    _, seen = measure([delta(content="x"), delta("stop") + DONE], api="chat",
                      extra_body={"max_tokens": 9, "ignore_eos": True}, headers={"x-a": "1"})  # fmt: skip
    sent = seen.bodies[0]
    assert sent["messages"] == [{"role": "user", "content": "question 0"}] and "prompt" not in sent
    assert sent["max_tokens"] == 9 and sent["ignore_eos"] is True
    assert "x-a: 1" in seen.heads[0].lower() and "POST /v1/chat/completions" in seen.heads[0]


@pytest.mark.parametrize("base", ["localhost:8000", "ftp://x", "", "http://"])
def test_a_base_url_that_is_none_gets_a_sentence(base):
    with pytest.raises(ValueError, match="base URL looks like"):
        Target(base)
    assert Target("http://h:1/v1/").url == "http://h:1/v1/completions"


class Words:
    """A tokenizer of words: no file is needed to test the command."""

    def encode(self, text):
        return text.split()

    def decode(self, ids):
        return " ".join(ids)


def main(arguments):
    try:
        return cli.main(arguments)
    except SystemExit as ended:  # argparse's way
        return ended.code


@pytest.fixture
def lumen_load(monkeypatch, tmp_path, capsys):
    """`lumen load` in process against a scripted server: (exit code, stdout, stderr, what the server saw)."""
    monkeypatch.setattr(command, "load_tokenizer", lambda name: Words())
    book = tmp_path / "book.txt"
    book.write_text("to be or not to be that is the question " * 50)

    def go(*arguments, scripts=(ANSWER,), status=200, metrics=()):
        seen = Seen()

        async def both():
            nonlocal seen
            async with serving(*scripts, status=status, metrics=metrics) as seen:
                fixed = [
                    "load",
                    "--base-url",
                    seen.url,
                    "--prompt-file",
                    str(book),
                    "--result-dir",
                    str(tmp_path),
                ]
                return await asyncio.to_thread(main, [*fixed, *arguments])

        code = asyncio.run(both())
        return code, *capsys.readouterr(), seen

    return go


BANNER = """\
============ Serving Benchmark Result ============
Successful requests:
Failed requests:
Benchmark duration (s):
Total input tokens:
Total generated tokens:
Request throughput (req/s):
Output token throughput (tok/s):
Peak output token throughput (tok/s):
Peak concurrent requests:
Total token throughput (tok/s):
---------------Time to First Token----------------
Mean TTFT (ms):
Median TTFT (ms):
P99 TTFT (ms):
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):
Median TPOT (ms):
P99 TPOT (ms):
---------------Inter-token Latency----------------
Mean ITL (ms):
Median ITL (ms):
P99 ITL (ms):
=================================================="""

KEYS = {
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
}


def names(report):
    return [line.split(":")[0] + ":" if ":" in line else line for line in report.strip().splitlines()]


def test_the_report_has_vllms_lines(lumen_load):
    code, out, _, seen = lumen_load("--num-prompts", "3", "--input-len", "5", "--output-len", "3",
                                    "--percentile-metrics", "ttft,tpot,itl")  # fmt: skip
    assert code == 0 and names(out) == BANNER.splitlines()
    assert (
        "Successful requests:                     3" in out
        and "Total input tokens:                      12" in out
    )
    assert [b["max_tokens"] for b in seen.bodies] == [3] * 3 and all(b["ignore_eos"] for b in seen.bodies)
    assert {b["model"] for b in seen.bodies} == {"scripted"}
    assert len({b["prompt"] for b in seen.bodies}) > 1


def test_an_open_loop_reports_from_the_intended_times_and_the_file_has_vllms_keys(lumen_load, tmp_path):
    code, out, _, _ = lumen_load("--num-prompts", "4", "--request-rate", "40", "--max-concurrency", "1", "--goodput",
                                 "ttft:1000", "e2el:5000", "--metric-percentiles", "50,99.9", "--save-detailed",
                                 "--result-filename", "r.json", "--metadata", "gpu=none")  # fmt: skip
    assert code == 0
    for line in ("Maximum request concurrency:", "Request rate configured (RPS):           40.00", "P99.9 E2EL (ms):",
                 "Request goodput (req/s):", "Mean E2EL incl. Client Queue (ms):", "Mean TTFT incl. Client Queue (ms):",
                 "Mean Client Queue Time (ms):"):  # fmt: skip
        assert line in out
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept.keys() >= KEYS and kept["gpu"] == "none" and kept["request_rate"] == 40.0
    assert {
        f"{w}_{m}_ms"
        for w in ("mean", "median", "std", "p50", "p99.9")
        for m in ("ttft", "tpot", "itl", "e2el")
    } <= kept.keys()
    for many in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"):
        assert len(kept[many]) == 4
    assert kept["output_lens"] == [3] * 4 and kept["errors"] == [""] * 4
    assert (
        kept["mean_e2el_including_client_queue_ms"] > kept["mean_e2el_ms"]
    )  # one at a time, asked 40 a second
    assert kept["request_goodput"] == pytest.approx(4 / kept["duration"])


def test_without_save_detailed_the_file_is_small(lumen_load, tmp_path):
    lumen_load("--num-prompts", "2", "--max-concurrency", "2", "--save-result", "--result-filename", "s.json")
    kept = json.loads((tmp_path / "s.json").read_text())
    assert "ttfts" not in kept and kept["request_rate"] == "inf" and kept["max_concurrency"] == 2


def test_speculation_is_read_off_the_metrics(lumen_load, tmp_path):
    def exposed(drafts, drafted, accepted, first, second):
        return (
            "# HELP vllm:spec_decode_num_drafts_total drafts\n"
            f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}\n'
            f'vllm:spec_decode_num_drafts_created{{engine="0"}} 1.7e9\n'
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}\n'
        )

    metrics = exposed(10.0, 20.0, 5.0, 4, 1), exposed(30.0, 60.0, 25.0, 18, 7)
    _, out, _, _ = lumen_load(
        "--num-prompts", "1", "--save-result", "--result-filename", "d.json", metrics=metrics
    )
    lines = out.splitlines()
    assert "---------------Speculative Decoding---------------" in lines
    for name, value in (
        ("Acceptance rate (%):", "50.00"),
        ("Acceptance length:", "2.00"),
        ("Drafts:", "20"),
        ("  Position 0:", "70.00"),
        ("  Position 1:", "30.00"),
    ):
        assert f"{name:<40} {value}" in lines
    kept = json.loads((tmp_path / "d.json").read_text())
    assert kept["spec_decode_per_position_acceptance_rates"] == [0.7, 0.3]
    assert kept["spec_decode_accepted_tokens"] == 20
    _, out, _, _ = lumen_load("--num-prompts", "1", metrics=("", ""))
    assert "Speculative" not in out


def test_failures_are_counted_and_told(lumen_load):
    """Status 0 while one request succeeded, 1 when none did; the most frequent failure has the last word."""
    refused, full = [event(error={"message": "no room"})], [event(error={"message": "full"})]
    code, out, err, _ = lumen_load(
        "--num-prompts", "3", "--max-concurrency", "1", scripts=(ANSWER, refused, ANSWER)
    )
    assert code == 0 and "Failed requests:                         1" in out and err == "failed: no room\n"
    code, out, err, _ = lumen_load(
        "--num-prompts", "3", "--max-concurrency", "1", scripts=(full, refused, refused)
    )
    assert code == 1 and "Mean TTFT (ms):                          -" in out
    assert err.splitlines() == [
        "failed 2 times: no room",
        "failed: full",
        "lumen: none of 3 requests succeeded; 2 of them: no room",
    ]
    code, _, err, _ = lumen_load("--num-prompts", "2", status=503, scripts=([b"{}"],))
    assert code == 1 and "none of 2 requests succeeded; 2 of them: HTTP 503" in err
    many = [[event(error=f"number {i}")] for i in range(15)]
    code, _, err, _ = lumen_load("--num-prompts", "15", "--max-concurrency", "1", scripts=many)
    assert code == 1 and len(err.splitlines()) == 12 and "failed 5 times of something else" in err


def test_a_trace_is_replayed(lumen_load, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 1000, "input_length": 2, "output_length": 7}\n\n'
                     '{"arrival": 0.9, "output_len": 5, "prompt": "exactly this"}\n')  # fmt: skip
    code, out, _, seen = lumen_load("--trace", str(trace), "--trace-speed", "2")
    assert code == 0 and [b["max_tokens"] for b in seen.bodies] == [5, 7]
    assert seen.bodies[0]["prompt"] == "exactly this" and "Mean E2EL incl. Client Queue" in out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--num-prompts", "0"], "--num-prompts: needs a whole number from 1"),
        (["--request-rate", "0"], "--request-rate: needs a number above 0"),
        (["--request-rate", "nan"], "--request-rate: needs a number above 0"),
        (["--request-rate", "1", "--burstiness", "-1"], "--burstiness: needs a number from 0.001"),
        (["--max-concurrency", "0"], "needs a whole number from 1"),
        (["--goodput", "itl:5"], "on ttft, tpot or e2el"),
        (["--goodput", "ttft"], "looks like ttft:500"),
        (["--goodput", "ttft:soon"], "looks like ttft:500"),
        (["--goodput", "ttft:-1"], "must not be negative"),
        (["--metric-percentiles", "101"], "between 0 and 100"),
        (["--metric-percentiles", "a"], "numbers separated by commas"),
        (["--percentile-metrics", "fps"], "ttft, tpot, itl and e2el"),
        (["--extra-body", "[1]"], "must be a JSON object"),
        (["--extra-body", "{"], "is no JSON"),
        (["--header", "x"], "takes KEY=VALUE"),
        (["--timeout", "0"], "--timeout: needs a number above 0"),
        (["--num-warmups", "-1"], "--num-warmups: needs a whole number from 0"),
        (["--input-len", "0"], "--input-len: needs a number from 1 to 1e+07"),
        (["--output-sigma", "-1"], "--output-sigma: needs a number from 0 to 10"),
        (["--base-url", "nowhere"], "base URL looks like"),
        (["--request-rate", "1e-9", "--num-warmups", "1"], "a run lasts from 0 to"),
        (["--input-len", "inf"], "--input-len: needs a number"),
        (["--extra-body", "[" * 100000], "nests too deeply"),
        (["--extra-body", '{"top_p": NaN}'], "is no JSON"),
        (["--save-result", "--result-filename", "."], "names a folder"),
        (["--prompt-file", "/"], "Cannot read '/': Is a directory"),
        (["--trace", "/no/such/trace", "--request-rate", "1"], "not both"),
        (["--trace", "/no/such/trace"], "No such file or directory"),
    ],
)
def test_bad_options_get_a_sentence(lumen_load, arguments, says):
    code, _, err, seen = lumen_load(*arguments)
    assert code == 2 and err.startswith(("lumen: ", "lumen load: ")) and says in err and not seen.bodies


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--base-url", "http://127.0.0.1:9"], "Is the server running there?"),
        (
            ["--save-result", "--result-dir", "/dev/null/there"],
            "Cannot write into '/dev/null/there': Not a directory.",
        ),
    ],
)
def test_what_the_world_refuses_is_known_before_the_run(lumen_load, arguments, says):
    code, _, err, seen = lumen_load(*arguments)
    assert code == 1 and err.startswith("lumen: ") and says in err and not seen.bodies


def test_a_result_that_cannot_be_written_is_told_behind_the_report(lumen_load):
    code, out, err, _ = lumen_load(
        "--num-prompts", "1", "--save-result", "--result-dir", "/dev", "--result-filename", "full"
    )
    assert code == 1 and "Serving Benchmark Result" in out
    assert err.endswith(
        "lumen: Cannot write '/dev/full': No space left on device; what is there is not whole.\n"
    )


def test_a_model_whose_name_is_a_path_writes_where_it_was_told(lumen_load, tmp_path):
    lumen_load("--num-prompts", "1", "--save-result", "--model", "..\\up/../\nx" + "y" * 400)
    (written,) = tmp_path.glob("openai-infqps-*.json")
    assert json.loads(written.read_text())["model_id"].startswith("..")
