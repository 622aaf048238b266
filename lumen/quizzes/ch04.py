"""The questions of chapter 04."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A token is appended. Which of these models may keep all its old keys and values?",
        "choices": [
            {
                "text": "A causal one with learned positions, some of them still free.",
                "ok": True,
                "why": "No old token reads the new one, and none has moved. Learned positions hurt only once they "
                "run out.",
            },
            {
                "text": "An encoder, since its weights stay the same.",
                "why": "Every old token reads the new one, so from the second layer on its keys and values change.",
            },
            {
                "text": "A causal one with learned positions that drops its first token and renumbers the rest.",
                "why": "Its old tokens have moved, and a key is made from token plus position: not one survives.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "A model has 24 layers, 16 query heads, 4 KV heads of width 128, and a bf16 cache. How "
        "many KiB does one token cost?",
        "answer": 48,
        "tolerance": 0.5,
        "unit": "KiB",
        "right": "2 · 24 · 4 · 128 · 2 = 49,152 bytes.",
        "wrong": "Multiply 2 (K and V), layers, KV heads, width and bytes, then divide by 1024.",
        "slips": [
            {"answer": 192, "why": "You counted query heads. Only KV heads are stored."},
            {"answer": 24, "why": "Keys *and* values: a factor 2 is missing."},
            {"answer": 49.15, "tolerance": 0.2, "why": "That is kB, thousands. In KiB it is 48."},
        ],
    },
    {
        "kind": "numeric",
        "question": "A prompt of 10,000 tokens, an answer of 3: how many times fewer rows does a cache compute?",
        "answer": 3,
        "tolerance": 0.02,
        "unit": "×",
        "right": "30,003 / 10,002: behind a long prompt, n tokens of answer save nearly n times.",
        "wrong": "Without a cache each of the three steps runs the prompt; with one, only the first.",
        "slips": [
            {"answer": 2, "tolerance": 0.02, "why": "(n+1)/2 is for a prompt of one token."},
            {
                "answer": 1,
                "why": "One token saves nothing. The second and the third run the prompt again without a cache.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "On a GPU a decode step takes 30 ms at batch 1. At batch 32, with long contexts, it takes 100 ms. "
        "What is the most likely reason?",
        "choices": [
            {
                "text": "The caches of 32 users are read in every step.",
                "ok": True,
                "why": "W is shared, B·L·κ is not. Past the crossing each user pays for themselves.",
            },
            {
                "text": "The weights are read 32 times.",
                "why": "They are read once for the whole batch. That is what batching is for.",
            },
            {
                "text": "The cache is recomputed for every user.",
                "why": "It is only read; the work per new token stays one row.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A cache passes every test with the whole prompt and then one token at a time. Which "
        "test is missing most?",
        "choices": [
            {
                "text": "Several new tokens on a cache that holds some.",
                "ok": True,
                "why": "There the top-left and the bottom-right triangle differ, and no test has been yet.",
            },
            {
                "text": "A longer prompt.",
                "why": "A prompt on an empty cache is square, where both triangles agree, at any length.",
            },
            {
                "text": "More decode steps.",
                "why": "One query may read every key: no triangle at all.",
            },
        ],
    },
]
