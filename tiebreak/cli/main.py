"""The command `tiebreak`. Each command lives in its own module of `tiebreak.cli`.

Exit codes: 0 success; 1 what was asked cannot be done as asked; 2 something from another party does not verify, or a
check of ours failed; 130 interrupted. An error of ours is one line, and so is a disk that is full or closed to us; any
other exception is a bug and keeps its traceback.
"""

import errno
import sys
from collections.abc import Sequence
from typing import Final

import click

from tiebreak.cli import COMMANDS
from tiebreak.protocol.errors import TiebreakError, VerificationError

CONFIGURATION: Final = 1
VERIFICATION: Final = 2
INTERRUPTED: Final = 130
_DISK: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS])
"""What a disk may say that no code of ours can help."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tiebreak")
def tiebreak() -> None:
    """Train models so that anyone can check the result, bit by bit.

    A training run is fixed by its program, its initial state and its data: every result is the correctly rounded value
    of its exact one, so two honest parties always get the same bytes. `tiebreak demo` shows the whole path.
    """


for _command in COMMANDS:
    tiebreak.add_command(_command)


def run(group: click.Group, arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Exceptions that are not ours, or click's, pass through."""
    try:
        code = group.main(
            args=None if arguments is None else list(arguments), prog_name="tiebreak", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return CONFIGURATION
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except TiebreakError as error:
        line = " ".join(str(error).split())
        click.echo(f"{type(error).__name__}: {line}", err=True)
        return VERIFICATION if isinstance(error, VerificationError) else CONFIGURATION
    except OSError as error:
        if error.errno not in _DISK:
            raise
        click.echo(
            f"{error.strerror}: {error.filename or 'while writing'}; free space or choose another folder", err=True
        )
        return CONFIGURATION
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(tiebreak))
