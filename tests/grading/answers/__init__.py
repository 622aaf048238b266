"""One module per chapter, `ch04.py`, with `ANSWERS: dict[str, Answers]`. Pattern: `../example_answers.py`."""
