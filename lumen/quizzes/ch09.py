"""The questions of chapter 09."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "choice",
        "question": "Eight answers stop while a long prompt is read. An engineer gives the answers a higher "
        "priority than any "
        "prompt. The token budget stays at 8,192. What changes?",
        "choices": [
            {
                "text": "The answers no longer stop.",
                "why": "They are in the prompt's step already, and it ends for all at once. Being first in "
                "it does not end it "
                "sooner.",
            },
            {
                "text": "Nothing: they already had their tokens in that step, and the step is as long as "
                "before.",
                "ok": True,
                "why": "What stops them is the rest of the step. Only a smaller budget makes that shorter.",
            },
            {
                "text": "The prompt starves while the answers last.",
                "why": "Eight answers take 8 of 8,192 tokens; the prompt has the rest of the same step.",
            },
            {
                "text": "The prompt's blocks are taken for the answers.",
                "why": "Only when the pool is dry, and then the freeze would not be the step's length.",
            },
        ],
    },
    {
        "kind": "numeric",
        "question": "Token budget 256, twelve answers under way, a prompt of 2,000 tokens arrives. After "
        "how many steps does it "
        "have its first token?",
        "answer": 9,
        "tolerance": 0.01,
        "unit": "steps",
        "right": "244 tokens a step are left; 2,000 / 244 is 8.2, and the ninth step ends with the sample.",
        "wrong": "What do the twelve leave of each step's budget? Round up.",
        "slips": [
            {
                "answer": 8,
                "tolerance": 0.01,
                "why": "Either you gave the whole budget to the prompt, or you rounded down: after 8 steps "
                "48 tokens are missing.",
            },
            {
                "answer": 10,
                "tolerance": 0.01,
                "why": "The first token is sampled in the step of the last chunk, not in one of its own.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A prompt is read in 16 chunks instead of one piece. What grows?",
        "choices": [
            {
                "text": "The FLOPs of attention, by about a sixteenth.",
                "why": "Each query meets each earlier key once, however the prompt is cut. The pairs are "
                "equal to the last one.",
            },
            {
                "text": "The memory that its keys and values take up.",
                "why": "Each position is stored once. What an unchunked step holds more of is activations.",
            },
            {
                "text": "The bytes of weights and cache that are read.",
                "ok": True,
                "why": "Weights 16 times, and the keys and values of earlier chunks in every later one. "
                "FLOPs stay the same.",
            },
            {
                "text": "Nothing.",
                "why": "Then nobody would use large budgets. Count how often the weights are read.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A preempted request had written 40 tokens, at temperature 0.8. By recompute, and "
        "without a prefix cache, what "
        "does the scheduler run when it is let in again?",
        "choices": [
            {
                "text": "Prompt and 40 tokens like one prompt; then it samples the next.",
                "ok": True,
                "why": "total stayed, computed is 0. The rule needs nothing else.",
            },
            {
                "text": "The prompt; after that the 40 tokens are sampled once more.",
                "why": "The reader has seen them, and others might be drawn.",
            },
            {
                "text": "The 40 tokens only, since the prompt's keys cannot have changed.",
                "why": "They have not changed, but they are gone: all blocks were given back.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "Eight chips keep two promises: every gap within 10 ms, every first token within 500 "
        "ms. Somebody splits them "
        "into readers and writers, and nobody queues. Then the limit on the gap is lowered to 8 ms. In the "
        "chapter's model, what "
        "stays as it was?",
        "choices": [
            {
                "text": "The requests per second.",
                "why": "Fewer answers fit into a shorter step, so the writers serve fewer.",
            },
            {
                "text": "The bytes of weights read per token of an answer.",
                "why": "A step reads the weights once, and now for fewer answers.",
            },
            {
                "text": "The time to the first token.",
                "ok": True,
                "why": "Readers never see the limit on the gap: no answer is in their steps. Together, "
                "smaller chunks would make "
                "it longer. With a queue in front of the readers it would depend on the load, not on that "
                "limit.",
            },
            {
                "text": "The best number of readers.",
                "why": "The writers slow down; the best split follows them, with fewer readers.",
            },
        ],
    },
]
