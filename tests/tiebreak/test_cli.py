"""Exit codes, one-line errors, and help that explains."""

import errno
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from tests.source_tree import ROOT
from tiebreak.cli.main import run, tiebreak
from tiebreak.protocol import errors
from tiebreak.protocol.errors import (
    CannotCheck,
    ConfigurationError,
    EncodingError,
    IllegalMove,
    ProgramError,
    ProofError,
    SignatureError,
    StateError,
    TiebreakError,
    VerificationError,
)


def group_that(action: Callable[[], object]) -> click.Group:
    @click.group()
    def group() -> None:
        pass

    @group.command()
    def act() -> object:
        return action()

    return group


def raising(error: BaseException) -> click.Group:
    def action() -> None:
        raise error

    return group_that(action)


ERRORS = [
    (EncodingError("e"), 2, "EncodingError: e"),
    (ProgramError(3, "rule"), 2, "ProgramError: instruction 3: rule"),
    (ProgramError(None, "rule"), 2, "ProgramError: program: rule"),
    (ProofError("e"), 2, "ProofError: e"),
    (SignatureError("e"), 2, "SignatureError: e"),
    (IllegalMove("e"), 2, "IllegalMove: e"),
    (VerificationError("e"), 2, "VerificationError: e"),
    (ConfigurationError("two\n  lines"), 1, "ConfigurationError: two lines"),
    (CannotCheck("e"), 1, "CannotCheck: e"),
    (StateError("e"), 1, "StateError: e"),
    (TiebreakError("e"), 1, "TiebreakError: e"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (click.UsageError("no"), 1, "Error: no"),
    (
        OSError(errno.ENOSPC, "No space left on device", "x"),
        1,
        "No space left on device: x; free space or choose another folder",
    ),
    (PermissionError(errno.EACCES, "Denied"), 1, "Denied: while writing; free space or choose another folder"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS, ids=lambda v: type(v).__name__)
def test_an_error_of_ours_is_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error), ["act"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip().splitlines()[-1] == line
    assert "Traceback" not in printed.err


def test_every_error_of_the_family_is_covered() -> None:
    family = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, TiebreakError)}
    assert family <= {type(error) for error, _, _ in ERRORS}


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.EBADF, "bad descriptor")])
def test_another_exception_is_a_bug_and_passes_through(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(raising(error), ["act"])


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (2, 2)])
def test_a_command_may_return_its_exit_code(returned: int | None, code: int) -> None:
    assert run(group_that(lambda: returned), ["act"]) == code


@pytest.mark.parametrize("arguments", [["no-such-command"], ["capture"], ["capture", "digits", "--steps", "0"]])
def test_wrong_usage_is_exit_code_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, arguments) == 1
    assert "Usage: tiebreak" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(tiebreak.commands))
def test_help_explains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, [name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: tiebreak {name}")
    assert len(text.split()) > 60
    for parameter in tiebreak.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} says nothing"


def test_the_installed_command_runs() -> None:
    code = "import sys; from tiebreak.cli.main import main; sys.argv = ['tiebreak', '--help']; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Usage: tiebreak" in done.stdout
    assert all(name in done.stdout for name in tiebreak.commands)
