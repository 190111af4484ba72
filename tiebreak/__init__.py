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

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tiebreak import hf
    from tiebreak.api.machine import Machine
    from tiebreak.api.signing.keys import load_key, new_key, save_key
    from tiebreak.api.training.calibrating import calibrate
    from tiebreak.api.training.runs import Run, agree, open_run, train
    from tiebreak.api.training.tasks import capture
    from tiebreak.api.training.trainer import Step, Trainer, reproducible
    from tiebreak.engine.capture.captured import Captured
    from tiebreak.engine.capture.task import (
        SGD,
        Adafactor,
        Adagrad,
        Adam,
        AdamW,
        Batch,
        Clip,
        Group,
        Lion,
        NAdam,
        RAdam,
        RMSprop,
        Rows,
        Task,
        Windows,
        no_decay,
    )
    from tiebreak.engine.logged.policy import LoggedPolicy
    from tiebreak.engine.optimizers.rates import constant, cosine, inverse_sqrt, linear, one_cycle, step_decay
    from tiebreak.engine.run.audit import SegmentAudit
    from tiebreak.protocol.commitments.keys import PrivateKey
    from tiebreak.protocol.commitments.terms import Terms
    from tiebreak.protocol.errors import CannotCheck, ConfigurationError, StateError, TiebreakError, VerificationError

_MODULES: Final = {
    "tiebreak.api.machine": "Machine",
    "tiebreak.api.signing.keys": "load_key new_key save_key",
    "tiebreak.api.training.calibrating": "calibrate",
    "tiebreak.api.training.runs": "Run agree open_run train",
    "tiebreak.api.training.tasks": "capture",
    "tiebreak.api.training.trainer": "Step Trainer reproducible",
    "tiebreak.engine.capture.captured": "Captured",
    "tiebreak.engine.capture.task": (
        "SGD Adafactor Adagrad Adam AdamW Batch Clip Group Lion NAdam RAdam RMSprop Rows Task Windows no_decay"
    ),
    "tiebreak.engine.logged.policy": "LoggedPolicy",
    "tiebreak.engine.optimizers.rates": "constant cosine inverse_sqrt linear one_cycle step_decay",
    "tiebreak.engine.run.audit": "SegmentAudit",
    "tiebreak.protocol.commitments.keys": "PrivateKey",
    "tiebreak.protocol.commitments.terms": "Terms",
    "tiebreak.protocol.errors": "CannotCheck ConfigurationError StateError TiebreakError VerificationError",
}
_HOME: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Batch",
    "CannotCheck",
    "Captured",
    "Clip",
    "ConfigurationError",
    "Group",
    "Lion",
    "LoggedPolicy",
    "Machine",
    "NAdam",
    "PrivateKey",
    "RAdam",
    "RMSprop",
    "Rows",
    "Run",
    "SegmentAudit",
    "StateError",
    "Step",
    "Task",
    "Terms",
    "TiebreakError",
    "Trainer",
    "VerificationError",
    "Windows",
    "agree",
    "calibrate",
    "capture",
    "constant",
    "cosine",
    "hf",
    "inverse_sqrt",
    "linear",
    "load_key",
    "new_key",
    "no_decay",
    "one_cycle",
    "open_run",
    "reproducible",
    "save_key",
    "step_decay",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "hf":
        return import_module("tiebreak.hf")
    if name not in _HOME:
        raise AttributeError(f"module 'tiebreak' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
