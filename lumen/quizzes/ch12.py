"""The questions of chapter 12."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "numeric",
        "question": "A model of 40 layers has 48 heads of width 128 and stores 6 heads of keys and values, 2 "
        "bytes a number. Four chips split its heads. How many KiB does a token take on the chip that holds most?",
        "answer": 40,
        "tolerance": 0.2,
        "unit": "KiB",
        "right": "Six heads on four chips, and none is cut: two on some. 2 · 40 · 2 · 128 · 2 bytes = 40,960.",
        "wrong": "Keys and values, for each layer and each stored head that lies on the chip.",
        "slips": [
            {
                "answer": 30,
                "tolerance": 0.2,
                "why": "That is a quarter of all. A head is not cut: 6 on 4 chips.",
            },
            {
                "answer": 20,
                "tolerance": 0.2,
                "why": "One head on each of four chips leaves two without a place.",
            },
            {"answer": 120, "tolerance": 0.5, "why": "That is all six heads. The chips split them."},
            {
                "answer": 240,
                "tolerance": 1,
                "why": "That is 12 of the heads that ask. Those that are stored are split.",
            },
            {"answer": 1, "tolerance": 0.1, "why": "That is one layer of 40."},
        ],
    },
    {
        "kind": "choice",
        "question": "A step of one user reads 16 GB of weights and 1 GB of cache. You store a quarter of the "
        "heads, and the weights stay as large. By how much does the step become faster, if bytes decide?",
        "choices": [
            {"text": "4 times.", "why": "The cache is read 4 times faster. It was 1 of 17."},
            {
                "text": "About 1.05 times.",
                "ok": True,
                "why": "17 / 16.25. With 32 such users: 48 / 24, twice as fast.",
            },
            {"text": "2 times.", "why": "That needs as much cache as two thirds of all bytes."},
            {
                "text": "Not at all, attention computes as much as before.",
                "why": "It does, but reading is what takes the time.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Turning each head's keys by a rotation of its own, queries along, leaves a model without RoPE as "
        "it is. Are the means of four of its heads the old means, turned?",
        "choices": [
            {
                "text": "Yes: rotations leave lengths and angles alone.",
                "why": "Within a head. A mean adds four, each turned another way.",
            },
            {
                "text": "No: they are other keys, made of numbers that stand for other axes.",
                "ok": True,
                "why": "Which is why turning heads towards each other first saves some of the loss.",
            },
            {
                "text": "All four heads are equal then.",
                "why": "A rotation for each head makes them no more alike.",
            },
            {"text": "The model is broken before anything is averaged.", "why": "(Rq) · (Rk) = q · k."},
        ],
    },
    {
        "kind": "choice",
        "question": "After conversion and 150 steps of training a model is 0.10 nats above the model it was "
        "made of. The control, not converted and trained as long, is 0.02 above it. What did the "
        "conversion cost?",
        "choices": [
            {"text": "0.10 nats.", "why": "0.02 of them any model would have lost by those steps."},
            {"text": "0.12 nats.", "why": "The control lost as well, so it comes off."},
            {
                "text": "0.08 nats.",
                "ok": True,
                "why": "The difference of two models that were trained alike.",
            },
            {
                "text": "Nothing, the rest is noise.",
                "why": "The two are compared window by window, so noise is far smaller.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Why does MLA store a key of its own for positions, beside the latent?",
        "choices": [
            {
                "text": "RoPE needs more numbers than a latent has.",
                "why": "DeepSeek's latent has 512, its rotary key 64.",
            },
            {
                "text": "A turn behind the up-projection differs from key to key: one query cannot absorb them all.",
                "ok": True,
                "why": "It would have to be another query for each key.",
            },
            {
                "text": "Latents of different tokens would be equal.",
                "why": "They are made of different inputs.",
            },
            {
                "text": "Because all heads must see different positions.",
                "why": "The rotary key is the same for all of them.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "DeepSeek-V3's latents are made twice as wide, r = 1,024; heads stay as they are. On a long "
        "context, up to how many new tokens does reading them absorbed compute less?",
        "choices": [
            {
                "text": "About 146: fewer than before.",
                "ok": True,
                "why": "Expanding costs twice as much, D · r a head and key; but what a pair then saves, r − D, is 7/3 "
                "of what it was.",
            },
            {
                "text": "About 341: twice as many.",
                "why": "Expanding does cost twice as much. But an absorbed pair costs more as well.",
            },
            {
                "text": "About 171, as before: both ways read the same latents.",
                "why": "Neither of the two costs grows as the other does: 2 and 7/3 times.",
            },
            {
                "text": "About 85: half as many.",
                "why": "What a pair saves expanded is 7/3 of what it was, but expanding costs twice as much, too.",
            },
        ],
    },
]
