"""The questions of chapter 06."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "Two prompts share 4,000 tokens in the middle, behind different first sentences. "
        "What can be reused exactly?",
        "choices": [
            {
                "text": "Nothing of the 4,000.",
                "ok": True,
                "why": "Above layer 1 their keys and values carry what the first sentence said.",
            },
            {
                "text": "The 4,000, if the first sentences have equal lengths.",
                "why": "Equal positions save layer 1. From layer 2 on the sentence has been seen.",
            },
            {
                "text": "The 4,000, with RoPE.",
                "why": "RoPE lets keys move to other positions. It does not undo what they have read.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "Blocks of 16. A prompt of 800 tokens, 50 blocks exactly, is sent a second time, "
        "word for word. How many tokens are found?",
        "answer": 784,
        "tolerance": 0.5,
        "unit": "tokens",
        "right": "The last token must run, so at most 799 may be found, and those are 49 whole blocks.",
        "wrong": "At least one token must run, and hits come in whole blocks.",
        "slips": [
            {
                "answer": 800,
                "tolerance": 0.4,
                "why": "Then nothing would run, and there would be no logits to sample from.",
            },
            {
                "answer": 799,
                "tolerance": 0.4,
                "why": "Only full blocks are shared: 799 is not a multiple of 16.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "Write 1.25, read 0.1. A prefix is used four times before it expires. How many "
        "percent are saved on it? (Three figures suffice.)",
        "answer": 61.25,
        "tolerance": 0.06,
        "unit": "%",
        "right": "1.25 + 3 · 0.1 = 1.55 instead of 4.",
        "wrong": "One write, three reads, divided by four.",
        "slips": [
            {"answer": 90, "why": "That is the discount on a read. The write has to be paid too."},
            {"answer": 58.75, "tolerance": 0.3, "why": "You counted four reads. The first use is the write."},
        ],
    },
    {
        "kind": "choice",
        "question": "Of a known prompt of ten blocks and a bit, the first block was evicted. How many of the ten are "
        "found when it is sent again?",
        "choices": [
            {
                "text": "Nine",
                "why": "They are in memory, and right. But a lookup begins at the first token and stops at the gap.",
            },
            {
                "text": "None",
                "ok": True,
                "why": "What lies behind the gap only takes up room, until somebody runs the first block again. That "
                "is why leaves go before their parents.",
            },
            {
                "text": "Eight",
                "why": "The bit behind the tenth block is what has to run. The lookup stops long before it.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "After switching the prefix cache on, TTFT falls by a factor of ten and the requests "
        "per second hardly change. Why?",
        "choices": [
            {
                "text": "Decoding long answers is where the machine spends its time.",
                "ok": True,
                "why": "A hit saves prefill only. Each token of the answer still reads weights and "
                "cache, found tokens included.",
            },
            {
                "text": "The hit rate must be low.",
                "why": "Then TTFT would not have fallen for most requests.",
            },
            {
                "text": "Hashing costs what prefill saved.",
                "why": "Hashing a prompt is a small part of its prefill: see the table under “Where "
                "it loses”.",
            },
        ],
    },
]
