"""The program of action.yml: replays drawn segments of a run, and reports in Markdown what it found.

It reads the inputs of action.yml as INPUT_RUN and so on, and writes to the files that GITHUB_STEP_SUMMARY, REPORT and
GITHUB_OUTPUT name. Exit codes are those of `tiebreak audit`: 0 agrees, 2 false, 3 could not be checked, 1 not possible
as asked. The folder of the run may be anybody's: only `tiebreak` reads it, in a process of its own that imports nothing
from the checkout, for a limited time, and what that process says is cut and escaped before it reaches a page.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final

MAX_DOCUMENT_BYTES: Final = 1 << 20
MAX_SHOWN: Final = 400
"""The most characters of a text that are shown."""
TITLES: Final = {
    0: "the segments that were drawn agree with the program",
    2: "the run is false",
    3: "the run could not be checked",
    1: "nothing was checked",
}


def shown(value: object) -> str:
    """A text as code in a cell of a table: no character of it is Markdown or HTML, and nobody is mentioned by it."""
    text = str(value)
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    plain = (c if c.isprintable() else " " for c in cut)
    return f"<code>{''.join(c if c == ' ' or (c.isascii() and c.isalnum()) else f'&#{ord(c)};' for c in plain)}</code>"


def ask(arguments: list[str], until: float) -> tuple[int, dict[str, Any], str]:
    """The exit code of a command of tiebreak, its JSON document, and the last sentence of what it complains about."""
    # -I: neither the working directory nor the environment adds modules. A relative path of theirs would be found here.
    with TemporaryDirectory() as scratch, TemporaryFile() as out, TemporaryFile() as err:
        command = [sys.executable, "-I", "-m", "tiebreak", *arguments, "--json"]
        try:
            seconds = max(0.0, until - time.monotonic())
            code = subprocess.run(command, cwd=scratch, stdout=out, stderr=err, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            return 3, {}, "expected an end within the minutes that were given, got none"
        out.seek(0)
        err.seek(max(0, err.seek(0, os.SEEK_END) - 4096))
        lines = err.read().decode("utf-8", "replace").strip().splitlines()
        try:
            document = json.loads(out.read(MAX_DOCUMENT_BYTES))
        except ValueError:
            document = {}
    return code, document if isinstance(document, dict) else {}, lines[-1] if lines else f"ended with {code}"


def check(run: str, segments: int, seed: str, job: str, minutes: float) -> tuple[int, dict[str, Any]]:
    """The exit code, and what the report says, by what its lines are called."""
    until, folder = time.monotonic() + 60 * minutes, str(Path(run).absolute())
    code, about, complaint = ask(["show", folder], until)
    facts: dict[str, Any] = {"run": run} | {name: about[name] for name in ("job", "steps") if name in about}
    if code:
        return 1 if code == 1 else 3, facts | {"reason": complaint}
    if job and about["job"] != job.removeprefix("0x").lower():
        return 1, facts | {"reason": f"expected a run of job {job}, got one of {about['job']}"}
    facts["signed"] = f"{about['signed']} of {about['of']} checkpoints"
    code, terms, complaint = ask(["show", folder, "--long"], until)
    if code == 0:
        facts["trainer"] = terms["trainer"]
    drawn = ["--sample", str(max(1, min(segments, int(about["signed"]))))]
    code, found, complaint = ask(["audit", folder, *drawn, *([f"--seed={seed}"] if seed else [])], until)
    verdict = {0: "agrees", 2: "fraud"}.get(code)
    if code not in TITLES or (verdict and found.get("verdict") != verdict):
        code = 3
    facts |= {name: found[name] for name in ("seed", "steps_replayed") if name in found}
    if "head" in found:
        facts["run root"] = found["head"]["run_root"]
    if "checked" in found:
        facts["segments replayed"] = ", ".join(str(number) for number, *_ in found["checked"])
        facts["chance to find one false segment"] = f"{found['detection'][0]['probability']:.1%}"
    if "first_difference" in found:
        facts["first difference"] = "steps {} to {}".format(*found["first_difference"]["steps"])
    return code, facts if code == 0 else facts | {"reason": found.get("reason", complaint)}


def report(code: int, facts: dict[str, Any]) -> str:
    rows = [f"| {name.replace('_', ' ')} | {shown(value)} |" for name, value in facts.items()]
    limits = "Segments that were not drawn were not looked at; `tiebreak audit` replays the whole run."
    return "\n".join([f"### Tiebreak: {TITLES[code]}", "", "| | |", "| --- | --- |", *rows, "", limits, ""])


def main() -> int:
    """Checks, writes the report, and returns the exit code."""
    inputs = {
        name: os.environ.get(f"INPUT_{name.upper()}", "") for name in ("run", "segments", "seed", "job", "minutes")
    }
    try:
        code, facts = check(
            inputs["run"], int(inputs["segments"]), inputs["seed"], inputs["job"], float(inputs["minutes"])
        )
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError) as error:
        code, facts = 1, {"run": inputs["run"], "reason": f"{type(error).__name__}: {error}"}
    text = report(code, facts)
    for variable, content in (("GITHUB_STEP_SUMMARY", text), ("REPORT", text), ("GITHUB_OUTPUT", f"code={code}\n")):
        if path := os.environ.get(variable):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(content)
    sys.stdout.write(f"Tiebreak: {TITLES[code]}\n")
    for name, value in facts.items():
        sys.stdout.write(f"  {name}: {' '.join(str(value).split())[:MAX_SHOWN]!a}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
