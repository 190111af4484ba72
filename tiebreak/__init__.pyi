"""The public names and their homes. `lazy_loader` reads this file, as type checkers and editors do."""

from . import hf
from .api.machine import Machine
from .api.signing.keys import load_key, new_key, save_key
from .api.training.calibrating import calibrate
from .api.training.runs import Run, agree, open_run, train
from .api.training.tasks import capture
from .api.training.trainer import Step, Trainer, reproducible
from .engine.capture.captured import Captured
from .engine.capture.examples import Batch, Rows, Windows
from .engine.capture.task import Task
from .engine.logged.policy import LoggedPolicy
from .engine.optimizers.settings import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    Group,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    constant,
    cosine,
    inverse_sqrt,
    linear,
    no_decay,
    one_cycle,
    step_decay,
)
from .engine.run.audit import SegmentAudit
from .protocol.commitments.keys import PrivateKey
from .protocol.commitments.terms import Terms
from .protocol.errors import CannotCheck, ConfigurationError, StateError, TiebreakError, VerificationError

__all__ = ["Batch", "Captured", "Group", "Rows", "Step", "Task", "Trainer", "Windows", "capture", "reproducible"]
__all__ += ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "Clip", "Lion", "NAdam", "RAdam", "RMSprop", "no_decay"]
__all__ += ["constant", "cosine", "inverse_sqrt", "linear", "one_cycle", "step_decay"]
__all__ += ["Machine", "Run", "SegmentAudit", "Terms", "agree", "hf", "open_run", "train"]
__all__ += ["LoggedPolicy", "PrivateKey", "calibrate", "load_key", "new_key", "save_key"]
__all__ += ["CannotCheck", "ConfigurationError", "StateError", "TiebreakError", "VerificationError"]
