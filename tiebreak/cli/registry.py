"""The commands, by package. A package registers its own by an entry point of the group `tiebreak.commands`.

The entry point names a `CommandSet`; the command line (`tiebreak.cli.main`) shows all sets as one, and imports a
command's own module only when the command is called.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

import click

ENTRY_POINTS: Final = "tiebreak.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSet:
    """Commands of one package. Command `a-b` is the function `a_b` of the module that has its name, or of `modules`."""

    package: str
    groups: Mapping[str, Mapping[str, str]]
    """Title of a group in the help -> command -> the first sentence of its help."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Command -> its module in `package`, if that is not the command's own name."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Command -> the extra that it always needs: a message then names all that is missing, and not only the first."""

    @property
    def commands(self) -> dict[str, str]:
        """Command -> the first sentence of its help."""
        return {name: line for group in self.groups.values() for name, line in group.items()}

    def load(self, name: str) -> click.Command:
        """Imports the command from its module."""
        command = getattr(import_module(f"{self.package}.{self.modules.get(name, name)}"), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@cache
def registered() -> tuple[CommandSet, ...]:
    """The sets of all packages that are installed; a package that is gone, but for its entry point, has none."""
    found = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        with suppress(ModuleNotFoundError):
            found.append(point.load())
    return tuple(found)
