"""Workflows cannot be run here, so what can be known of them is: they parse, their actions are pinned and current, what
they call exists, and what needs write access is the deployment alone."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import repo
import yaml

# The oldest major of each action that runs on Node 24; Node 20 leaves GitHub's runners.
MAJORS = {
    "actions/checkout": 7,
    "actions/setup-python": 7,
    "actions/cache": 6,
    "actions/upload-artifact": 7,
    "actions/configure-pages": 6,
    "actions/upload-pages-artifact": 5,
    "actions/deploy-pages": 5,
}
FILES = sorted((repo.ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def workflow(request):
    return yaml.safe_load(request.param.read_text("utf8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow):
    """Lines of shell, expressions of GitHub's taken out."""
    text = "\n".join(step["run"] for step in steps(workflow) if "run" in step)
    return re.sub(r"\$\{\{.*?\}\}", "X", text).splitlines()


def test_the_ones_that_we_promise_are_there():
    assert [path.stem for path in FILES] == ["cpu", "drift", "gpu", "pages"]


def test_every_action_is_pinned_to_a_current_major(workflow):
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            action, version = step["uses"].split("@")
            assert version == f"v{MAJORS[action]}"


def test_what_it_calls_exists(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (repo.ROOT / "Makefile").read_text("utf8"), re.M))
    called = [word for line in commands(workflow) for word in re.findall(r"\bmake ([a-z-]+)", line)]
    assert set(called) <= targets
    scripts = [word for line in commands(workflow) for word in re.findall(r"python (\S+\.py)", line)]
    assert all((repo.ROOT / script).exists() for script in scripts)
    assert called or scripts


def test_its_shell_is_shell(workflow):
    for step in steps(workflow):
        if "run" in step:
            text = re.sub(r"\$\{\{.*?\}\}", "X", step["run"])
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert not done.stderr, shlex.quote(text) + done.stderr


def test_rights_are_given_to_the_deployment_alone_and_every_job_ends(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120
        assert job.get("permissions", {}) == (
            {"pages": "write", "id-token": "write"} if name == "deploy" else {}
        )


def test_our_own_runner_never_runs_a_stranger_and_keeps_its_environment():
    gpu = yaml.safe_load((repo.ROOT / ".github/workflows/gpu.yml").read_text("utf8"))
    assert "pull_request" not in gpu[True], "YAML reads `on` as true"
    checkout = next(step for step in steps(gpu) if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["clean"] is False
    assert any(re.search(r"git clean -\S*x\S* -e \.venv", line) for line in commands(gpu))


def test_a_plain_jupyter_book_build_finds_the_table_of_contents():
    assert "root: book/intro" in (repo.ROOT / "_toc.yml").read_text("utf8")
    assert not (repo.ROOT / "book/_toc.yml").exists()


@pytest.mark.parametrize(
    "form", sorted((repo.ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_issue_forms_have_what_github_asks_for(form):
    content = yaml.safe_load(form.read_text("utf8"))
    if form.stem == "config":
        assert content["blank_issues_enabled"] is True
        return
    assert content["name"] and content["description"]
    ids = [field["id"] for field in content["body"] if field["type"] != "markdown"]
    assert ids and len(ids) == len(set(ids))
    for field in content["body"]:
        assert field["type"] in {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert field["attributes"].get("value" if field["type"] == "markdown" else "label")


def test_the_citation_names_this_repository_and_this_version():
    import lumen

    citation = yaml.safe_load((repo.ROOT / "CITATION.cff").read_text("utf8"))
    assert (
        citation["cff-version"] == "1.2.0"
        and citation["title"]
        and citation["message"]
        and citation["authors"]
    )
    assert citation["repository-code"] == repo.url() and citation["url"] == repo.site()
    assert citation["version"] == lumen.__version__
    dates = re.findall(
        r"^## .*\((\d{4}-\d\d-\d\d)\)$", (repo.ROOT / "book/changelog.md").read_text("utf8"), re.M
    )
    assert str(citation["date-released"]) in dates
    assert dates == sorted(dates, reverse=True)


def test_the_readme_begins_with_the_books_address():
    head = (repo.ROOT / "README.md").read_text("utf8")[:900]
    assert repo.site() in head
    for badge in re.findall(r"!\[[^]]*\]\(([^)]*badge[^)]*)\)", head):
        assert badge.startswith(repo.url())
        assert (repo.ROOT / ".github/workflows" / badge.split("/")[-2]).exists()
