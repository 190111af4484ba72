"""The pages of docs/reference have an entry and an example for each public name, and their examples run."""

import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import tiebreak
from tests.source_tree import ROOT
from tiebreak.cli.main import all_commands, run
from tiebreak.cli.main import tiebreak as command_line

PAGES: Final = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md"))}
NAMES: Final = {"Captured": "captured", "PrivateKey": "key", "Run": "signed"}
"""The objects of the examples of classes that users do not make by name."""
PUBLIC: Final = sorted({*tiebreak.__all__} - {"hf"}) + [f"hf.{name}" for name in tiebreak.hf.__all__]
ERRORS: Final = {
    name for name in PUBLIC if isinstance(found := attrgetter(name)(tiebreak), type) and issubclass(found, Exception)
}


def script(page: str, folder: Path) -> Path:
    """The examples of a page as a script in a folder, each line at its own number."""
    lines, inside = [], False
    for line in PAGES[page].splitlines():
        inside = inside and line != "```"
        lines.append(line if inside else "")
        inside = inside or line == "```python"
    path = folder / f"{page}.py"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({*PAGES} - {"commands", "huggingface"}))
def test_the_examples_of_a_page_run_in_their_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "tiebreak" in runpy.run_path(str(script(page, tmp_path)))


@pytest.mark.slow
def test_the_examples_for_hugging_face_run_in_their_order(tmp_path: Path) -> None:
    """In a process of their own, because `install` replaces a method of `transformers`."""
    run_it = "import runpy, sys, tests.tiebreak.absent_libraries; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", run_it, str(script("huggingface", tmp_path))]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    (task,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_task.py").write_text(task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIEBREAK_PASSPHRASE", "in three parts")
    called = set()
    for line in re.findall(r"^    (tiebreak .*)$", PAGES["commands"], flags=re.MULTILINE):
        words = shlex.split(line, comments=True)
        code = re.search(r"exit code (\d)", line)
        assert run(command_line, words[1:]) == (int(code[1]) if code else 0), line
        called.add(words[1])
        cases()
    elsewhere = {"demo", "up", "finetune", "judge", "hub", "client", "trainer", "auditor", "watcher", "fetch", "devnet"}
    assert called == {*all_commands()} - elsewhere - {
        "chain",
        "simulate",
        "economics",
        "worst",
        "serve",
        "receipt",
        "evaluate",
        "generate",
    }


def described(value: Any) -> str:
    """What the reference says of a name: its docstring; for a class also those of bases, fields and `__init__`."""
    texts = [value.__doc__]
    bases = value.__mro__ if inspect.isclass(value) else ()
    for base in (base for base in bases if base.__module__.startswith("tiebreak.")):
        fields = re.findall(r'^    (\w+): .*\n    """', inspect.getsource(base), flags=re.MULTILINE)
        texts += [base.__doc__, vars(base).get("__init__", value).__doc__, "".join(f"{name}: " for name in fields)]
    return "\n".join(text for text in texts if text)


def test_each_public_name_has_an_entry_with_parameters_and_an_example(cases: Callable[[], None]) -> None:
    entries = {}
    for text in PAGES.values():
        _, *parts = re.split(r"^::: tiebreak\.(?!engine)(\S+)$", text, flags=re.MULTILINE)
        entries |= dict(zip(parts[::2], parts[1::2], strict=True))
    assert sorted(entries) == sorted(PUBLIC)
    for name in PUBLIC:
        (example,) = re.findall(r"```python\n(.*?)```", entries[name], flags=re.DOTALL)
        assert re.search(rf"\b{NAMES.get(name, f'tiebreak.{name}')}\b", example), f"{name}: an example without it"
        value = attrgetter(name)(tiebreak)
        of_torch = inspect.signature(getattr(torch.optim, name, lambda: None)).parameters
        for parameter in () if name in ERRORS else inspect.signature(value).parameters:
            said = re.search(rf"\b{parameter}(?:, \w+)*:\s|`{parameter}`", described(value))
            assert said or parameter in of_torch, f"{name}: a docstring that does not say what {parameter} is"
        cases()
