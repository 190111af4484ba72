"""The steps of action.yml, as a runner runs them, on runs of tests/compatibility."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from scripts.action import MAX_SHOWN, shown
from tests.source_tree import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
RUNS = ROOT / "tests" / "compatibility" / "2026-11-29"


def act(workspace: Path, temporary: Path, **inputs: str) -> tuple[int, str, str]:
    """Runs the steps after the installation in a checkout, with Tiebreak as it is installed here and a `gh` of ours.

    Returns the exit code, the report, and what `gh` was given, the report included.
    """
    (temporary / "tiebreak" / "bin").mkdir(parents=True)
    gh = 'printf "%s\\n" "$GH_TOKEN" "$@"; cat "${@: -1}"'
    for name, text in (("tiebreak/bin/python", f'exec "{sys.executable}" "$@"'), ("gh", gh)):
        (temporary / name).write_text(f"#!/bin/bash\n{text}\n")
        (temporary / name).chmod(0o755)
    values = {name: str(given.get("default", "")) for name, given in ACTION["inputs"].items()} | inputs
    runner = {name: str(temporary / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    runner |= {"RUNNER_TEMP": str(temporary), "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "a/b"}
    runner["PATH"] = f"{temporary}{os.pathsep}{os.environ['PATH']}"
    ended = []
    for name in ("Replay", "Comment"):
        given = {key: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: values[m[1]], value)
                 for key, value in STEPS[name]["env"].items()}  # fmt: skip
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
        environment = os.environ | runner | given
        ended.append(
            subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, check=False)
        )
    report = (temporary / "tiebreak-report.md").read_text()
    assert report == (temporary / "GITHUB_STEP_SUMMARY").read_text()
    assert (temporary / "GITHUB_OUTPUT").read_text() == f"code={ended[0].returncode}\n"
    assert "Traceback" not in ended[0].stderr
    return ended[0].returncode, report, ended[1].stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("run", 0), ("false", 2)])
def test_action_fails_on_a_false_run_and_comments_on_both(tmp_path: Path, name: str, code: int) -> None:
    """The checkout brings modules of its own, which would end the program as if all were well."""
    workspace = tmp_path / "checkout"
    shutil.copytree(RUNS / name, workspace / "my run")
    for module in ("json.py", "torch.py", "sitecustomize.py", "tiebreak.py"):
        (workspace / module).write_text("raise SystemExit(0)\n")
    ended, report, comment = act(workspace, tmp_path / "runner", run="my run", segments="3", token="t0ken")
    assert (ended, "### Tiebreak: the run is false" in report) == (code, code == 2)
    assert ("first difference | <code>steps 4 to 6</code>" in report) == (code == 2)
    assert re.search(r"\| seed \| <code>[0-9a-f]{32}</code> \|", report)
    assert comment.startswith("t0ken\npr\ncomment\n${{ github.event.pull_request.number }}\n--repo\na/b\n--body-file\n")
    assert comment.endswith(report)


@pytest.mark.parametrize(
    ("inputs", "code", "reason"),
    [
        ({"run": "nothing"}, 1, "does not exist"),
        ({"run": "-h"}, 1, "does not exist"),
        ({"run": "withheld"}, 3, "expected one msgpack value"),
        ({"run": "run", "job": "0x00"}, 1, "expected a run of job 0x00"),
        ({"run": "run", "segments": "many"}, 1, "ValueError"),
        ({"run": "run", "minutes": "0"}, 3, "expected an end within the minutes"),
    ],
)
def test_what_cannot_be_checked_fails_with_its_reason(
    tmp_path: Path, inputs: dict[str, str], code: int, reason: str
) -> None:
    shutil.copytree(RUNS / "run", tmp_path / "run")
    shutil.copytree(RUNS / "run", tmp_path / "withheld")
    (tmp_path / "withheld" / "job.bin").write_bytes(b"@everybody")
    ended, report, _ = act(tmp_path, tmp_path / "runner", **inputs)
    assert (ended, reason in report) == (code, True), report


def test_nothing_in_a_report_is_markdown_or_html_of_a_stranger() -> None:
    hostile = "a|b`**c**`</code><img src=x>@user #1 https://x\n::error::\u202e" + "z" * 9_999
    text = shown(hostile).removeprefix("<code>").removesuffix("</code>")
    assert not re.search(r"[^A-Za-z0-9&#; ]", text)
    assert len(text) < 7 * MAX_SHOWN


def test_action_is_pinned_and_shell_text_holds_no_expression() -> None:
    steps: list[dict[str, Any]] = ACTION["runs"]["steps"]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert all("${{" not in step["run"] for step in steps if "run" in step)
    given = {key for step in steps for key in step.get("env", {}) if key.startswith("INPUT_")}
    assert {name.removeprefix("INPUT_").lower().replace("_", "-") for name in given} | {"comment", "token"} == set(
        ACTION["inputs"]
    )
