"""The questions of chapter 10."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "TTFT has gone from 0.2 s to 8 s within a minute; TPOT is what it always is at this "
        "hour. What do you look at first?",
        "choices": [
            {
                "text": "requests waiting, and the arrival rate",
                "ok": True,
                "why": "A request inside is as fast as ever, so the time is lost in front of the scheduler.",
            },
            {
                "text": "the tokenizer",
                "why": "It was among the shortest bars of the picture, and its work does not grow within a minute.",
            },
            {
                "text": "the prefill kernels",
                "why": "A slow prefill would hold up everybody's decode steps as well, and TPOT would show it.",
            },
            {
                "text": "the network",
                "why": "A slow line would stretch the gaps as well. A long one adds milliseconds, not seconds that "
                "grow.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "16 slots; a prefill takes 25 ms; a step with 16 sequences 40 ms; answers have 101 "
        "tokens. Saturation throughput?",
        "answer": 3.636,
        "tolerance": 0.04,
        "unit": "requests/s",
        "right": "16 / (16 · 0.025 + 100 · 0.040) = 16 / 4.4.",
        "wrong": "A full house costs 16 prefills and 100 steps, and finishes 16 requests.",
        "slips": [
            {"answer": 4.0, "tolerance": 0.01, "why": "You left the prefills out."},
            {"answer": 3.975, "tolerance": 0.005, "why": "Each of the 16 requests has a prefill of its own."},
            {"answer": 0.227, "tolerance": 0.01, "why": "That is one slot. There are sixteen."},
        ],
    },
    {
        "kind": "choice",
        "question": "The stop is `END`. The text so far ends in `… THE E`. What may be sent?",
        "choices": [
            {
                "text": "everything but the `E`",
                "ok": True,
                "why": "`E` may be the beginning of the stop. It is held until the next character says no.",
            },
            {
                "text": "everything",
                "why": "Then `E` is on the screen when `ND` comes, and cannot be taken back.",
            },
            {
                "text": "nothing until the answer ends",
                "why": "Only text that could still become a stop has to wait.",
            },
            {
                "text": "everything but the last two characters",
                "why": "Safe, and late: nothing that holds a space can become the stop. Hold the longest end that "
                "begins one.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A dashboard shows p99 of TTFT at 9.9 s for a server whose histogram has neighbouring "
        "edges at 5 and 10 s. What do you know?",
        "choices": [
            {
                "text": "that it lies between 5 and 10 s",
                "ok": True,
                "why": "The rest is the assumption that values lie evenly in the bucket.",
            },
            {
                "text": "that it is 9.9 s",
                "why": "If half of the requests took 5.1 s each and the others less than 5, the dashboard would show "
                "9.9 as well.",
            },
            {"text": "nothing", "why": "Counts say for certain in which bucket it lies."},
        ],
    },
    {
        "kind": "choice",
        "question": "There are limits on TTFT and on TPOT, and nobody may be turned away. Which of the two "
        "can you keep at any load, by settings of the server alone?",
        "choices": [
            {
                "text": "TPOT, by fewer slots",
                "ok": True,
                "why": "Who is inside shares a step with the other slots only (and with pieces of prompts, which the "
                "token budget bounds). TTFT needs a queue that empties: more capacity, or fewer requests.",
            },
            {
                "text": "TTFT, by more slots",
                "why": "More slots raise throughput a little and slow every step. If arrivals exceed that, the queue "
                "still grows.",
            },
            {
                "text": "both, by chunked prefill",
                "why": "It cuts long stalls into short ones. It does not make capacity, so the queue still grows.",
            },
        ],
    },
]
