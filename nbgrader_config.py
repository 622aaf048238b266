"""For teachers: what nbgrader must know to make the published exercises of our solutions.

Copy this file to the root of an nbgrader course, a notebook of `solutions/` to `source/NAME/`, and run
`nbgrader generate_assignment NAME`. The release is the notebook of `exercises/`, cell for cell;
`book/tools/make_exercises.py` uses the same steps, and a test compares the two.
"""

import re

from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import NbGraderPreprocessor

STUB = "# YOUR CODE HERE\nraise NotImplementedError()"


class AsExercise(NbGraderPreprocessor):
    """Before nbgrader's own steps: no `solution-only` cell, hidden tasks shown, title and badge row of an exercise."""

    def preprocess(self, nb, resources):
        nb.cells = [c for c in nb.cells if "solution-only" not in c.metadata.get("tags", [])]
        for cell in nb.cells:
            tags = cell.metadata.get("tags", [])
            if "remove-cell" in tags:  # a task's text, which the solution's page does not repeat
                tags.remove("remove-cell")
            if "badges" in tags:  # the way to the other notebook, instead of to itself
                cell.source = re.sub(
                    r"\[exercises\]\((\S*?)exercises/", r"[solutions](\1solutions/", cell.source
                )
        nb.cells[0].source = re.sub(r"\bSolutions?\b", "Exercises", nb.cells[0].source, count=1)
        return nb, resources


if "get_config" in globals():  # nbgrader gives it to its configuration files
    c = get_config()  # noqa: F821
    c.CourseDirectory.course_id = "lumen"
    c.GenerateAssignment.preprocessors = [
        AsExercise,
        *GenerateAssignment.class_traits()["preprocessors"].default(),
    ]
    c.ClearSolutions.code_stub = {"python": STUB}
    c.ExecutePreprocessor.timeout = 600  # seconds a cell, on a busy server
