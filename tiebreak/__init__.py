"""Training runs whose bytes are fixed by the program: reproducible anywhere, checkable by anyone.

    task = tiebreak.Task(model, loss, data=data, optimizer=tiebreak.AdamW(lr=1e-3), batch=32, steps=1000)
    trainer = tiebreak.reproducible(task)
    for step in trainer:
        print(step.number, step.loss)
    model.load_state_dict(trainer.state_dict())      # the same bytes on every machine
    print(trainer.digest())

If all you want is the same bytes on every machine, `tiebreak.reproducible` is enough. `tiebreak.train(task, folder)`
makes a run on disk with committed checkpoints, which resumes after a crash and which anyone can audit; with the keys of
a client and a trainer, a referee or a contract can judge it. The command `tiebreak` does the same from a shell.

Importing this package imports nothing else; torch comes with the first name that is used.
"""

from typing import Any

import lazy_loader

_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _attached(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        line = f"tiebreak.{name} needs PyTorch, which is not installed; install it by: pip install 'tiebreak[train]'"
        raise ModuleNotFoundError(line, name="torch") from error
