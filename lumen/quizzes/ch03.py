"""The questions of chapter 03."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A thousand answers of a hundred tokens each: p99 of TPOT is 45 ms, p99 of ITL is 900 ms. What "
        "fits?",
        "choices": [
            {
                "text": "One of the two was measured wrongly.",
                "why": "Both can be right: one is per answer, the other per gap.",
            },
            {
                "text": "Every answer has one stall of 900 ms; its other gaps take about 36 ms.",
                "ok": True,
                "why": "98 gaps of 36 ms and one of 900 have a mean of 45; and one gap in 99 is beyond p99.",
            },
            {
                "text": "One answer in ten is twenty times slower than the others, from its first token to its last.",
                "why": "Then one answer in ten has a TPOT of 900 ms, and p99 of TPOT is 900 ms as well.",
            },
            {
                "text": "The first tokens are slow.",
                "why": "The wait for the first token is TTFT, in neither of the two.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "One gap in 200 is a stall, independently. What share of answers of 101 tokens has at least one?",
        "answer": 39.4,
        "tolerance": 0.15,
        "unit": "%",
        "right": "100 gaps: 1 − 0.995^100 = 39.4 %.",
        "wrong": "All gaps of an answer must be clean for it to be clean.",
        "slips": [
            {"answer": 0.394, "why": "That is the share of 1; in percent it is 39.4."},
            {"answer": 0.5, "why": "That is the share of the gaps. An answer has a hundred of them."},
            {"answer": 50, "why": "Adding 100 × 0.5 % counts answers with two stalls twice."},
            {"answer": 60.6, "why": "That is the share of clean answers."},
            {"answer": 39.7, "why": "101 tokens have 100 gaps; the first token comes with TTFT."},
        ],
    },
    {
        "kind": "numeric",
        "question": "A server takes one request at a time, 50 ms each. Requests are due evenly, at a load of 80 %. "
        "Once the server freezes for 510 ms. How many take more than 100 ms, counted from when they were due?",
        "answer": 37,
        "tolerance": 0.5,
        "unit": "requests",
        "right": "(510 / 50 − 1) · 0.8 / 0.2 = 36.8: 37 of them, the frozen one included.",
        "wrong": "(freeze / s − 1) · load / (1 − load), rounded up.",
        "slips": [
            {"answer": 36, "why": "Rounded down, that leaves out one of them: the frozen one counts, too."},
            {"answer": 40.8, "why": "A wait of 50 ms does no harm: the freeze counts less one service time."},
            {
                "answer": 8.5,
                "tolerance": 0.7,
                "why": "So many are due during the freeze. The backlog makes those late who come after it.",
            },
            {"answer": 1, "why": "So many a tester counts who waits for each answer, from the sending."},
        ],
    },
    {
        "kind": "numeric",
        "question": "One server that takes 100 ms for every request, one at a time, Poisson arrivals at a load "
        "of 80 %. The mean latency?",
        "answer": 300,
        "tolerance": 5,
        "unit": "ms",
        "right": "100 + 0.8 / 0.2 · 100 / 2 = 300 ms.",
        "wrong": "s + load / (1 − load) · s / 2.",
        "slips": [
            {"answer": 200, "why": "That is the wait alone; being served takes 100 ms more."},
            {
                "answer": 500,
                "why": "That is for exponential service times. Here all are equal, and the wait is half.",
            },
            {"answer": 100, "why": "That is a request that finds nobody before it."},
        ],
    },
    {
        "kind": "choice",
        "question": "An engine with 64 places goes from 30 % to 90 % of its full rate. What do its users notice "
        "first?",
        "choices": [
            {
                "text": "Slower tokens",
                "ok": True,
                "why": "Each step has more rows and more prompts in it, from the first neighbour on. A queue needs "
                "all 64 "
                "places taken.",
            },
            {
                "text": "A later first token, by the factor 1 / (1 − load)",
                "why": "That factor belongs to one server with one place. With 64 places most find one free even "
                "at 90 %.",
            },
            {
                "text": "Nothing until it is full",
                "why": "That is the post office, where each is served as if alone. In an engine all inside share "
                "each step.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Three replicas report p99 latencies of 1, 1 and 4 s. The p99 of the service?",
        "choices": [
            {
                "text": "2 s, the mean of the three",
                "why": "Percentiles do not average. If a third of the requests go to the slow replica, look near its "
                "p97.",
            },
            {
                "text": "4 s, that of the slowest replica",
                "why": "That is the p99 of the slow replica's own requests. Those of the others dilute it, by an "
                "unknown "
                "amount.",
            },
            {
                "text": "These three numbers do not say",
                "ok": True,
                "why": "You need the samples, or histograms with the same buckets, added up.",
            },
        ],
    },
]
