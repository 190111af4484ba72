"""The commands of `tiebreak`, in the order of its help: one module for each, which declares and does it."""

from typing import Final

import click

from tiebreak.commands.agree import agree
from tiebreak.commands.capture import capture
from tiebreak.commands.key import key

COMMANDS: Final[tuple[click.Command, ...]] = (key, capture, agree)
