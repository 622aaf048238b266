"""The questions of chapter 01."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A server gives the last 1,000 tokens of a prompt to the model one by one instead of in one "
        "pass. What happens?",
        "choices": [
            {
                "text": "The same result; each of the 1,000 costs as much as a token of an answer",
                "ok": True,
                "why": "A row alone reads all weights for itself, whoever wrote the token.",
            },
            {
                "text": "The same result in the same time: it is the same arithmetic",
                "why": "The arithmetic is the same. The weights are read 1,000 times instead of once.",
            },
            {
                "text": "Another result: a prompt has to be read at once",
                "why": "Every token sees itself and the ones before it, however they are cut into passes.",
            },
            {
                "text": "The same result, 1,000 times as slow as the pass of 1,000 rows",
                "why": "Only if a row alone took as long as 1,000 together. A few hundred at most nearly do; then "
                "arithmetic counts.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "A prompt of 300 tokens, an answer of 100, a cache, greedy. How many forward passes?",
        "answer": 100,
        "tolerance": 0.5,
        "unit": "passes",
        "right": "The prefill yields the first token, 99 decode steps the others.",
        "wrong": "Count what each pass yields: one token, the first one too.",
        "slips": [
            {
                "answer": 101,
                "why": "The last token is never run through the model: nobody asks what follows it.",
            },
            {"answer": 400, "why": "The 300 tokens of the prompt go through in a single pass."},
            {"answer": 99, "why": "These are the decode steps. The prefill is a pass as well."},
        ],
    },
    {
        "kind": "numeric",
        "question": "A model of 3 billion parameters in 8 bits, on a chip that reads 300 GB/s. The least time "
        "per token?",
        "answer": 10,
        "tolerance": 0.3,
        "unit": "ms",
        "right": "3 GB / 300 GB/s = 10 ms.",
        "wrong": "Bytes of weights over bytes per second.",
        "slips": [
            {"answer": 20, "why": "That would be 16 bits: two bytes a weight."},
            {"answer": 80, "why": "Bandwidth is in bytes, so count the weights in bytes too."},
            {"answer": 100, "why": "That is tokens per second."},
        ],
    },
    {
        "kind": "choice",
        "question": "The prompt doubles from 2,000 to 4,000 tokens; the answer stays at 200. One user on a GPU: which "
        "is right?",
        "choices": [
            {
                "text": "TTFT and TPOT both double.",
                "why": "A decode step reads the same weights as before; only the cache it reads has grown.",
            },
            {
                "text": "TTFT about doubles, TPOT hardly changes.",
                "ok": True,
                "why": "2NP doubles. The step gets a little more cache to read.",
            },
            {
                "text": "Neither changes: prefill is parallel.",
                "why": "It is parallel, and past the ridge the arithmetic units are full: twice the work takes "
                "twice the time.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A service labels long documents with one token. Which change makes it faster?",
        "choices": [
            {
                "text": "Weights in 4 bits, multiplied in 16.",
                "why": "Fewer bytes to read, the same arithmetic. A long prefill waits for arithmetic.",
            },
            {
                "text": "A chip with twice the FLOP/s.",
                "ok": True,
                "why": "All of its time is prefill of long prompts, which is bound by arithmetic.",
            },
            {
                "text": "A second, smaller model that guesses the next tokens.",
                "why": "There is one token of answer, and it comes out of the prefill.",
            },
            {"text": "Decode steps that start faster.", "why": "It has no decode step."},
        ],
    },
]
