"""The questions of chapter 07."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "A help desk had a wrong hit at 0.96 and raises the threshold from 0.8 to 0.97. What does it get?",
        "choices": [
            {
                "text": "Fewer hits, and pairs with exchanged roles still among them.",
                "ok": True,
                "why": "More than half of the exchanged pairs lie at 0.99 or above, where no pair in other words "
                "is left.",
            },
            {
                "text": "Only right hits, since all traps seen so far lay below.",
                "why": "The trap that was seen lay below. The pairs with exchanged planets do not.",
            },
            {
                "text": "The same hits, since right hits lie near 1.",
                "why": "Pairs in other words have a median below 0.9 here: nearly all of them are lost.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "Two unit vectors have a squared distance of 0.5. What is their cosine?",
        "answer": 0.75,
        "tolerance": 0.004,
        "unit": "",
        "right": "1 − 0.5 / 2.",
        "wrong": "The squared distance is 2 − 2 cos.",
        "slips": [
            {
                "answer": 0.5,
                "tolerance": 0.001,
                "why": "1 − distance holds for cosine distance. Here it is squared Euclidean.",
            },
            {"answer": 0.25, "tolerance": 0.001, "why": "That is the cosine distance, one minus the cosine."},
        ],
    },
    {
        "kind": "numeric",
        "question": "A cache finds 60 % of the paraphrases and is fooled by 5 % of the traps. Of the near pairs, one "
        "in ten is a paraphrase and nine are traps. What share of its hits is right?",
        "answer": 57.1,
        "tolerance": 0.5,
        "unit": "%",
        "right": "0.1 · 0.6 / (0.1 · 0.6 + 0.9 · 0.05) = 0.06 / 0.105.",
        "wrong": "Count hits: paraphrases times recall, and traps times the share that fools it.",
        "slips": [
            {
                "answer": 92.3,
                "tolerance": 0.5,
                "why": "That is 0.6 / 0.65, right for as many traps as paraphrases.",
            },
            {
                "answer": 95,
                "tolerance": 0.5,
                "why": "5 % of the traps hit. That does not make 95 % of the hits right.",
            },
            {"answer": 99.1, "tolerance": 0.5, "why": "That is the answer for nine paraphrases to one trap."},
        ],
    },
    {
        "kind": "choice",
        "question": "In the shadow, 100 hits were labelled and none was wrong. What may be promised, at 95 %?",
        "choices": [
            {
                "text": "At most about 4 % wrong hits.",
                "ok": True,
                "why": "Wilson's interval for 0 of 100 ends at 3.7 %.",
            },
            {
                "text": "No wrong hits.",
                "why": "A share of 2 % would show none in 100 about one time in seven.",
            },
            {
                "text": "At most 1 % wrong hits.",
                "why": "That takes nearly four times as many labels without a wrong one.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Tests pass one text at a time. In production, in batches, the same question sometimes misses its "
        "own stored answer. What was forgotten?",
        "choices": [
            {
                "text": "The attention mask in the mean.",
                "ok": True,
                "why": "Alone a text has no padding. In a batch the padding depends on the longest text beside it.",
            },
            {
                "text": "Scaling to length 1.",
                "why": "The mean of a text has the same length in every batch: it would hit always or never, not "
                "sometimes.",
            },
            {
                "text": "The age limit.",
                "why": "Without one no answer is ever too old: that gives stale hits, not misses.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "After one long instruction every customer asks “Where is my order?”, and a tool looks it up. "
        "Which cache helps and tells nobody of another's order?",
        "choices": [
            {
                "text": "A prefix cache.",
                "ok": True,
                "why": "All requests begin with the instruction, to the token, and each answer is written anew.",
            },
            {
                "text": "A semantic cache with a threshold of 0.99.",
                "why": "The questions are the same: no threshold tells the customers apart.",
            },
            {
                "text": "An exact cache: prompt, model, parameters.",
                "why": "The tenant is missing in the key: the second customer is told of the first one's order.",
            },
        ],
    },
]
