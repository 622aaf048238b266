"""The questions of chapter 13."""

from __future__ import annotations

QUESTIONS = [
    {
        "kind": "numeric",
        "question": "Keys and values in 4 bits. 64 numbers share a step and a smallest value of 2 bytes each. How many "
        "users fit where one of 16 bits did, on average? To two decimals.",
        "answer": 3.56,
        "tolerance": 0.05,
        "unit": "times as many",
        "right": "4 + 32 / 64 = 4.5 bits a number, and 16 / 4.5.",
        "wrong": "A number takes its code and its part of the two scales.",
        "slips": [
            {
                "answer": 4,
                "tolerance": 0.02,
                "why": "The scales are stored, too: 32 bits for every 64 numbers.",
            },
            {
                "answer": 3.76,
                "tolerance": 0.04,
                "why": "That is one scale of 2 bytes; a smallest value takes two more.",
            },
            {"answer": 4.5, "tolerance": 0.04, "why": "Those are the bits a number. 16 over them is asked."},
        ],
    },
    {
        "kind": "choice",
        "question": "Channel 7 of a head's keys lies between 20 and 24 for every token, all others between −1 and 1. "
        "You have 2 bits. What goes wrong with a scale for each token, and not with one for each channel?",
        "choices": [
            {
                "text": "Channel 7 is cut off.",
                "why": "The smallest and the largest number of a group have codes of their own. Nothing is cut.",
            },
            {
                "text": "A step is about 8, so that all quiet channels get the same code.",
                "ok": True,
                "why": "(24 + 1) / 3. By channel they would have steps of 2 / 3, and channel 7 one of 4 / 3.",
            },
            {
                "text": "Scales by token take more bytes.",
                "why": "Numbers that share a scale are as many in both cases if you like.",
            },
            {
                "text": "Tokens that come later change the scale of earlier ones.",
                "why": "That is the catch of scales by channel.",
            },
        ],
    },
    {
        "kind": "choice",
        "question": "A window of 512 tokens on a model that was not trained with one. The text passes token 513, "
        "and the "
        "loss jumps. What helps at the same memory?",
        "choices": [
            {
                "text": "A larger window next time: the model misses what it has forgotten.",
                "why": "Four later tokens, kept for good, help nothing. It is not what they say.",
            },
            {
                "text": "Keeping the first token or a few of them, and 511 or so of the newest.",
                "ok": True,
                "why": "Heads put much of their weight on the first token, whatever it says.",
            },
            {
                "text": "Renormalising the weights of what is left.",
                "why": "The softmax does that already: so others get weight that the first token had.",
            },
            {"text": "Counting positions from the start of the window.", "why": "The sink is still gone."},
        ],
    },
    {
        "kind": "choice",
        "question": "A fact stands in the middle of a document, and nothing in the document refers to it. You cut the "
        "cache before any question is known. Which of these keeps every key of the fact?",
        "choices": [
            {
                "text": "H2O: it adds up attention over all queries.",
                "why": "Over those so far, and the question is not among them.",
            },
            {
                "text": "SnapKV: it looks at the last queries of the prompt.",
                "why": "They are the document's last words, not the question.",
            },
            {
                "text": "All keys in four bits.",
                "ok": True,
                "why": "No forecast is made. Each key is a little wrong.",
            },
            {"text": "Sinks and the newest tokens.", "why": "The middle is what they drop."},
        ],
    },
    {
        "kind": "numeric",
        "question": "A rule keeps 410 keys, and keys leave behind each forward. Somebody measures it on texts of 4,096 "
        "tokens that he feeds in two forwards of 2,048. At which token, counted from 1, can an output first "
        "differ from that of the full cache?",
        "answer": 2049,
        "tolerance": 0,
        "unit": "",
        "right": "The first of the second forward. Half of the text never feels the rule; in one forward none would.",
        "wrong": "Keys leave when a forward is over. Whose queries are the first to miss them?",
        "slips": [
            {
                "answer": 411,
                "tolerance": 0,
                "why": "The first forward still holds all of its keys while it runs.",
            },
            {
                "answer": 2048,
                "tolerance": 0,
                "why": "That token is in the first forward, behind which keys leave.",
            },
            {"answer": 4097, "tolerance": 0, "why": "That would hold for one forward. Here are two."},
        ],
    },
    {
        "kind": "choice",
        "question": "Quest with pages of 16 reads a tenth of the pages. Which is true of a decode step, in a layer "
        "that selects?",
        "choices": [
            {
                "text": "It reads a tenth of the bytes and holds a tenth.",
                "why": "It holds all of them, and the bounds beside.",
            },
            {
                "text": "It reads a tenth of the bytes.",
                "why": "To choose, it reads the bounds of every page: two vectors for 32.",
            },
            {
                "text": "It reads about 16 % of the bytes and holds about 106 %.",
                "ok": True,
                "why": "1/10 + 1/16 read, 1 + 1/16 held.",
            },
            {
                "text": "What it does not read is lost for the next step.",
                "why": "The next query chooses anew. That is the point.",
            },
        ],
    },
]
