"""A captured job as files: a client sends them to a trainer and an auditor, who check them before they run anything.

    program.tbp           the program (specification 4.1)
    state.safetensors     the initial state
    data.safetensors      everything else that the steps read
    origins.json          where in the model each instruction comes from, for readers only: no root binds it
    bundle.json           name, steps, checkpoint interval, and the three roots; written last. `"check"` is
                          "slice" or "none" if not all of the program was compared with eager PyTorch

All of these bytes are untrusted until `load_bundle` has checked them: the program must obey its rules, state and data
must have exactly the names, dtypes and shapes that it declares, and the roots must be those of the files.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from tiebreak.api.training.tasks import capture
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data import FactsCache, data_identities
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.formats import map_tensors, read_tensors, write_tensors
from tiebreak.engine.data.tensors import check_spec, identities
from tiebreak.engine.run.cost import Cost, cost_of
from tiebreak.engine.run.directory import MAX_ORIGINS_BYTES, MAX_PROGRAM_BYTES, ORIGINS, decoded
from tiebreak.engine.run.rematerialization import rematerialized
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.strict_json import JsonObject

PROGRAM: Final = "program.tbp"
STATE: Final = "state.safetensors"
DATA: Final = "data.safetensors"
MANIFEST: Final = "bundle.json"
MAX_DEPTH: Final = 2
FORMAT: Final = 1
MAX_STEPS: Final = (1 << 64) - 1
MAX_MANIFEST_BYTES: Final = 4096
"""A manifest takes about 400 bytes. A limit is needed because deeply nested JSON can exhaust its parser's C stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A job before it is signed.

    state, data: tensors by name, on the CPU. Loaded data are mapped from their file; a captured state is `Captured`'s.
    """

    name: str
    steps: int
    checkpoint_interval: int
    program: Program
    state: dict[str, Tensor]
    data: dict[str, Tensor]
    check: str = "full"
    """The kind of check against PyTorch (`Captured`), as its maker states it; unverified."""
    origins: bytes = b""
    """The contents of origins.json, unverified: only for messages."""

    def __post_init__(self) -> None:
        if not 1 <= self.checkpoint_interval <= self.steps:
            raise EncodingError(
                f"{MANIFEST}: expected 1 <= checkpoint interval <= {self.steps}, got {self.checkpoint_interval}"
            )
        self.program.validate()
        check_spec("initial state", self.state, self.program.state_spec(), narrow=True)
        check_spec("data", self.data, self.program.data_spec())

    @property
    def parameters(self) -> int:
        """The number of elements in the model's parameters and buffers."""
        return sum(tensor.numel() for name, tensor in self.state.items() if name.startswith(MODEL))

    @property
    def cost(self) -> Cost:
        """The cost of a step for one worker on a CPU: in its order, with the state held as it is here."""
        return cost_of(self.program, rematerialized(self.program), sum(t.nbytes for t in self.state.values()))

    def roots(self) -> dict[str, str]:
        """The three roots that a job fixes, in hex."""
        return {
            "program_root": self.program.root.hex(),
            "initial_state_root": state_tree(identities(self.state)).root.hex(),
            "data_root": data_tree(data_identities(self.data, cache=FactsCache())).root.hex(),
        }

    def manifest(self) -> dict[str, Any]:
        """The contents of bundle.json."""
        checked = {} if self.check == "full" else {"check": self.check}
        return {
            "format": FORMAT, "name": self.name, "steps": self.steps, "checkpoint_interval": self.checkpoint_interval,
            **self.roots(), **checked,
        }  # fmt: skip

    def save(self, folder: Path) -> None:
        """Writes the files into a new or empty folder, the manifest last."""
        if folder.exists() and not folder.is_dir():
            raise ConfigurationError(f"expected a new or empty folder, got {folder}, a file; choose another")
        with Folder.make(folder) as made:
            if made.names():
                raise ConfigurationError(f"expected a new or empty folder, got {folder}; choose another or empty it")
            made.write(PROGRAM, self.program.encode())
            write_tensors(made, STATE, self.state, narrow=True)
            write_tensors(made, DATA, self.data)
            if self.origins:
                made.write(ORIGINS, self.origins)
            made.write(MANIFEST, (json.dumps(self.manifest(), indent=2) + "\n").encode())


def capture_bundle(task: Task, *, check: str = "full", device: str = "cpu") -> Bundle:
    """Captures a task as `tiebreak.api.training.tasks.capture` does."""
    made = capture(task, check=check, device=device)
    return Bundle(
        name=task.name, steps=task.steps, checkpoint_interval=task.checkpoint_interval, program=made.program,
        state=made.state, data=made.data, check=made.check,
        origins=json.dumps([instruction.origin for instruction in made.program.body]).encode(),
    )  # fmt: skip


def load_bundle(folder: Path) -> Bundle:
    """Reads and checks a bundle.

    Raises `StateError` if the folder holds none, `VerificationError` if its files do not match its manifest.
    """
    if not (folder / MANIFEST).is_file():
        raise StateError(f"expected a captured job in {folder}, got no {MANIFEST}; make one with `tiebreak capture`")
    with Folder(folder) as files:
        files.check()
        manifest = JsonObject.parse(str(folder / MANIFEST), files.read(MANIFEST, MAX_MANIFEST_BYTES), MAX_DEPTH)
        manifest.version("format", FORMAT)
        check = "full"
        if "check" in manifest:
            check = manifest.take("check", "slice, none, or no such field", lambda found: found in ("slice", "none"))
        program = decoded(folder / PROGRAM, Program.decode, files.read(PROGRAM, MAX_PROGRAM_BYTES))
        bundle = Bundle(
            name=manifest.text("name"), steps=manifest.integer("steps", 1, MAX_STEPS),
            checkpoint_interval=manifest.integer("checkpoint_interval", 1, MAX_STEPS), program=program,
            state=read_tensors(files, STATE, program.state_spec()), data=map_tensors(files, DATA, program.data_spec()),
            check=check, origins=files.read(ORIGINS, MAX_ORIGINS_BYTES) if files.holds(ORIGINS) else b"",
        )  # fmt: skip
    for (name, root), file in zip(bundle.roots().items(), (PROGRAM, STATE, DATA), strict=True):
        manifest.same(name, root, f", the root of {folder / file}")
    manifest.finish()
    return bundle
