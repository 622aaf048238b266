"""One module per chapter, `ch04.py`, with `ANSWERS: dict[str, Answers]`; see `tests/grading/example_answers.py`."""
