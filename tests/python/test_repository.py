"""What hosting sites, contributors and packagers read: the files parse, and what they name exists."""

import re
import sys

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml")
if not (ROOT / ".ci/run").exists():
    pytest.skip("not in a clone", allow_module_level=True)


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def stages():
    """Names of the stages of .ci/run, and what each runs."""
    lines = re.findall(r'^    "(\w+) +\d+ (?:quick|dear) +(\S.*)"$', (ROOT / ".ci/run").read_text(), re.M)
    return dict(lines)


def exists(command):
    """The program of a command lies in the tree, or make has the target."""
    program, *words = command.split()
    if program == "make":
        return all(re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.M) for word in words)
    return (ROOT / program).is_file() and (ROOT / program).stat().st_mode & 0o111


def test_the_workflow_runs_every_stage():
    known = stages()
    assert {"setup", "lint", "test", "wheel"} <= set(known)
    for command in known.values():
        assert exists(command), command
    workflow = load(".github/workflows/ci.yml")
    assert workflow[True].keys() == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    (job,) = workflow["jobs"].values()
    matrix = job["strategy"]["matrix"]
    named = " ".join([*matrix["stages"], *(row["stages"] for row in matrix["include"])]).split()
    (run,) = [step["run"] for step in job["steps"] if ".ci/run" in step.get("run", "")]
    assert run == ".ci/run setup python ${{ matrix.stages }}"
    assert sorted([*named, "setup", "python"]) == sorted(known)


def test_the_bug_template_asks_for_the_doctor():
    form = load(".github/ISSUE_TEMPLATE/bug.yml")
    assert form["name"] and form["description"]
    fields = {part["id"]: part for part in form["body"]}
    assert "smla doctor --json" in fields["doctor"]["attributes"]["description"]
    assert fields["doctor"]["validations"]["required"] and fields["call"]["validations"]["required"]
    assert {part["type"] for part in form["body"]} <= {
        "markdown",
        "input",
        "textarea",
        "dropdown",
        "checkboxes",
    }
    assert load(".github/ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"] is True


def test_hooks_are_the_lints(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    lints = re.search(r"^LINTS = \((.*?)\)", (ROOT / "scripts/lint/run").read_text(), re.M | re.S).group(1)
    (repo,) = load(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert [hook["id"] for hook in repo["hooks"]] == re.findall(r'"(\w+)"', lints)
    for hook in repo["hooks"]:
        assert hook["entry"] == f"scripts/lint/run {hook['id']}" and exists(hook["entry"])
        assert hook["language"] == "system" and hook["pass_filenames"] is False


def test_containerfile_and_contributing_name_what_exists():
    container = (ROOT / "Containerfile").read_text()
    assert re.search(r"^FROM \S*debian:12$", container, re.M)
    assert set(re.search(r"RUN \.ci/run (.*)", container).group(1).split()) <= set(stages())
    for target in re.findall(r"make ([a-z]+)$", container, re.M):
        assert exists(f"make {target}"), target
    shown = re.search(r"```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)
    commands = [line.split("#")[0].strip() for line in shown.splitlines()]
    for command in commands:
        assert command.split()[0] in ("podman", "pre-commit") or exists(command), command
    assert "make test lint" in commands and ".ci/run" in commands


def test_the_version_stands_in_one_place():
    """Elsewhere it is derived; a file that must spell it out is held to the header."""
    header = (ROOT / "include/smla/types.h").read_text()
    version = ".".join(re.findall(r"#define SMLA_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", header))
    citation = load("CITATION.cff")
    assert citation["version"] == version and citation["cff-version"] == "1.2.0"
    assert (
        citation["license"] == "Apache-2.0"
        and citation["authors"]
        and citation["title"]
        and citation["message"]
    )
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and f'"{version}"' not in project
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_every_description_names_the_models():
    places = ["README.md", "pyproject.toml", "CITATION.cff", "docs/site.yml", "tools/smla/command_line.cpp"]
    for place in [*places, "python/smla/__init__.py"]:
        head = (ROOT / place).read_text()[:1500]
        assert "V3.2" in head and "V4.1" in head and re.search(r"GLM-5", head), place
    assert "The smla authors" in (ROOT / "pyproject.toml").read_text()
    assert load("CITATION.cff")["authors"] == [{"name": "The smla authors"}]


def test_the_readme_is_short_and_in_order():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 150
    parts = [
        "docs/performance.svg",
        "## Status",
        "## Install",
        "## Use",
        "## What runs where",
        "## Limitations",
    ]
    places = [text.index(part) for part in [*parts, "## Why another library", "## License"]]
    assert places == sorted(places)
    assert not re.search(r"\d (us|ms|TB/s|TFLOP/s)\b", text)  # times belong to docs/performance.md
