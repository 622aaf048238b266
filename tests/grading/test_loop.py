"""Wrong loops that are told the same sentence as another one: `proof` wants one of a kind, a reader writes them all."""

import pytest

from lumen import grading
from lumen.grading.kinds import loop as says
from tests.grading import loops

SET = grading.exercise_set("01")
LOOPS = {"loop": loops.bent(), "three-faults": loops.half_mended()}


@pytest.mark.parametrize("some", loops.SOME)
@pytest.mark.parametrize("id", LOOPS)
def test_a_part_of_the_stop_ids_is_not_enough(id, some):
    verdict = SET[id].grade(loops.some_stop_ids(LOOPS[id], loops.SOME[some]))
    assert verdict.state == "WRONG" and verdict.slip == says.ONE, verdict


def test_a_prompt_in_two_passes_is_not_called_a_wasted_last_one():
    assert SET["loop"].grade(loops.bent(warms=True)).slip == says.PIECES
