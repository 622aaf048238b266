"""The questions of chapter 08."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "The batch is doubled and a step takes 1.05 times as long. What does the step mostly do?",
        "choices": [
            {"text": "It computes.", "why": "Twice the rows are twice the arithmetic."},
            {
                "text": "It does what it pays once: reading weights, starting operators.",
                "ok": True,
                "why": "What grows with the batch, caches and arithmetic, is about 5 % of it.",
            },
            {
                "text": "It reads caches.",
                "why": "Then twice the sequences would take nearly twice as long: each reads its own.",
            },
            {"text": "It waits for the longest answer.", "why": "That costs steps, not time per step."},
        ],
    },
    {
        "kind": "numeric",
        "question": "Weights of 16 GB, a cache of 128 kB a token, every sequence at 2,500 tokens of context. "
        "At which batch do the caches weigh as much as the weights?",
        "answer": 50,
        "tolerance": 0.5,
        "unit": "sequences",
        "right": "16 GB / (2,500 · 128 kB): each sequence brings 0.32 GB.",
        "wrong": "W = B · L · κ, solved for B.",
        "slips": [
            {
                "answer": 125000,
                "tolerance": 500,
                "why": "That is the number of tokens. Divide by the context of a sequence.",
            },
            {"answer": 48.8, "tolerance": 0.4, "why": "That takes kB for 1,024 bytes. Here it is 1,000."},
            {"answer": 0.32, "tolerance": 0.01, "why": "That is the cache of one sequence in GB."},
        ],
    },
    {
        "kind": "choice",
        "question": "Four answers of 10, 10, 10 and 50 tokens share a static batch. Which share of the slots is used?",
        "choices": [
            {
                "text": "20 %",
                "why": "That is 10 / 50, the share of a short one. The long one uses its slot to the end.",
            },
            {"text": "25 %", "why": "One of four runs at the end, but all four ran at the beginning."},
            {"text": "40 %", "ok": True, "why": "80 tokens in 4 · 50 places: mean 20 over maximum 50."},
            {"text": "80 %", "why": "80 is the number of tokens. The slots have 200 places."},
        ],
    },
    {
        "kind": "choice",
        "question": "Eight prompts of 1,000 tokens arrive together. Why does one pass for all save hardly anything?",
        "choices": [
            {
                "text": "Their keys and values must be written one by one.",
                "why": "They are written in the same pass, and they are small beside the arithmetic.",
            },
            {
                "text": "They have to be padded.",
                "why": "All eight have the same length. It would not help if they were packed, either.",
            },
            {
                "text": "One of them already keeps the arithmetic busy.",
                "ok": True,
                "why": "A thousand rows share one reading of the weights. Eight thousand take eight times as long.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A model with RoPE gets a left-padded batch. Pads are masked, but every row's positions are too "
        "high by its number of pads. What do you see?",
        "choices": [
            {
                "text": "Wrong scores: every token believes it stands elsewhere.",
                "why": "With RoPE only the distance of two tokens enters their score, and distances are as before.",
            },
            {
                "text": "The same scores, up to rounding.",
                "ok": True,
                "why": "Distances count, not places. Learned absolute positions would change them, and so would a "
                "position beyond the model's limit.",
            },
            {"text": "An error about shapes.", "why": "The shapes are those of any other batch."},
            {
                "text": "Wrong scores, because pads are read.",
                "why": "They would be if the mask were missing as well. Here it is not.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Overnight, 10,000 reviews are scored with one token each. What does continuous batching bring "
        "over static batches of the same size?",
        "choices": [
            {"text": "Two to three times the throughput.", "why": "That needs answers of different lengths."},
            {
                "text": "As good as nothing.",
                "ok": True,
                "why": "All of a batch end in the same step, so no slot stands empty before.",
            },
            {
                "text": "It depends on how far the prompts' lengths spread.",
                "why": "That decides what padding wastes, or what packing saves; the door opens at the same step.",
            },
        ],
    },
]
