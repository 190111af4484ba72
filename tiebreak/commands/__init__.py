"""The commands of `tiebreak`, in the order of its help: one module for each, which declares and does it."""

from typing import Final

import click

from tiebreak.commands.capture import capture

COMMANDS: Final[tuple[click.Command, ...]] = (capture,)
