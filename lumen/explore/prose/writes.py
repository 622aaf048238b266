"""What a write does to a state under each rule of `lumen.attention.linear`, in words: one wording for page, explorer
and lab."""

WRITES = {"linear": "add", "gated": "fade, add", "delta": "correct", "gated_delta": "fade, correct"}
