"""Finds a task: a built-in name, or a Python file of the user's own that defines `task()`.

A task file is code that is run, so only its author should run it. Nothing that arrives from another party goes through
here: auditors and referees get programs.
"""

import importlib.util
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

BUILT_IN: Final = ("digits", "text")
"""Modules in this package. They are imported on demand, because one needs scikit-learn."""


class _FromSource(SourceFileLoader):
    """Reads the source itself. Byte code may be older by less than a second, or come from somebody else."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(path: Path) -> ModuleType:
    """Runs a Python file as a module. Exceptions of its own code pass through with their traceback."""
    if path.suffix != ".py" or not path.is_file():
        names = ", ".join(sorted(BUILT_IN))
        raise ConfigurationError(f"expected {names} or the path of a Python file with task(), got {str(path)!r}")
    loader = _FromSource(f"tiebreak_task_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_task(name: str, *, steps: int | None = None) -> Task:
    """The task that `name` stands for. If `steps` is given, it is passed to the module's `task()`."""
    module = import_module(f"tiebreak.api.builtin.{name}") if name in BUILT_IN else import_file(Path(name))
    make = getattr(module, "task", None)
    if not callable(make):
        raise ConfigurationError(f"expected a function task() in {name}, got {make!r}; define it and return a Task")
    made = make() if steps is None else make(steps=steps)
    if not isinstance(made, Task):
        raise ConfigurationError(f"expected task() of {name} to return a tiebreak.Task, got {type(made).__name__}")
    return made
