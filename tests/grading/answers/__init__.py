"""One module per chapter, `ch04.py`, with `ANSWERS: dict[str, Submissions]`. Pattern: `../example_answers.py`."""
