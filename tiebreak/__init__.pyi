"""The public names and their homes. `lazy_loader` reads this file, as type checkers and editors do."""

from . import hf as hf
from .api.machine import Machine as Machine
from .api.signing.keys import (
    load_key as load_key,
)
from .api.signing.keys import (
    new_key as new_key,
)
from .api.signing.keys import (
    save_key as save_key,
)
from .api.training.calibrating import calibrate as calibrate
from .api.training.runs import (
    Run as Run,
)
from .api.training.runs import (
    agree as agree,
)
from .api.training.runs import (
    open_run as open_run,
)
from .api.training.runs import (
    train as train,
)
from .api.training.tasks import capture as capture
from .api.training.trainer import (
    Step as Step,
)
from .api.training.trainer import (
    Trainer as Trainer,
)
from .api.training.trainer import (
    reproducible as reproducible,
)
from .engine.capture.captured import Captured as Captured
from .engine.capture.task import (
    SGD as SGD,
)
from .engine.capture.task import (
    Adafactor as Adafactor,
)
from .engine.capture.task import (
    Adagrad as Adagrad,
)
from .engine.capture.task import (
    Adam as Adam,
)
from .engine.capture.task import (
    AdamW as AdamW,
)
from .engine.capture.task import (
    Batch as Batch,
)
from .engine.capture.task import (
    Clip as Clip,
)
from .engine.capture.task import (
    Group as Group,
)
from .engine.capture.task import (
    Lion as Lion,
)
from .engine.capture.task import (
    NAdam as NAdam,
)
from .engine.capture.task import (
    RAdam as RAdam,
)
from .engine.capture.task import (
    RMSprop as RMSprop,
)
from .engine.capture.task import (
    Rows as Rows,
)
from .engine.capture.task import (
    Task as Task,
)
from .engine.capture.task import (
    Windows as Windows,
)
from .engine.capture.task import (
    no_decay as no_decay,
)
from .engine.logged.policy import LoggedPolicy as LoggedPolicy
from .engine.optimizers.settings import (
    constant as constant,
)
from .engine.optimizers.settings import (
    cosine as cosine,
)
from .engine.optimizers.settings import (
    inverse_sqrt as inverse_sqrt,
)
from .engine.optimizers.settings import (
    linear as linear,
)
from .engine.optimizers.settings import (
    one_cycle as one_cycle,
)
from .engine.optimizers.settings import (
    step_decay as step_decay,
)
from .engine.run.audit import SegmentAudit as SegmentAudit
from .protocol.commitments.keys import PrivateKey as PrivateKey
from .protocol.commitments.terms import Terms as Terms
from .protocol.errors import (
    CannotCheck as CannotCheck,
)
from .protocol.errors import (
    ConfigurationError as ConfigurationError,
)
from .protocol.errors import (
    StateError as StateError,
)
from .protocol.errors import (
    TiebreakError as TiebreakError,
)
from .protocol.errors import (
    VerificationError as VerificationError,
)
