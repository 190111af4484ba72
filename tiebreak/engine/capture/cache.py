"""Captured steps, kept by content: the second capture of a step costs its fingerprint, not its trace.

One file for each step, named by its key: SHA-256 over the fingerprint of the step
(`tiebreak.engine.capture.fingerprint`, which
says why a stale hit is impossible) and over what the builder held before the capture (slots, batch selection, refs). An
entry holds the instructions that capture emitted, their places in the model, and what it returned; everything after
capture (optimizer, schedule, commits) is compiled anew each time. An entry is read back as strictly as a stranger's
program, and one that is damaged is a miss.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from tiebreak.engine.capture.fingerprint import NoFingerprint, step_fingerprint
from tiebreak.engine.capture.step import StepGraph, capture
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.native import cache_directory
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import decode_instruction, encode_instruction

LOG: Final = logging.getLogger(__name__)
MAX_ENTRY_BYTES: Final = 1 << 30
MAX_ENTRIES: Final = 64
"""The oldest are removed beyond that; GPT-2's takes a few megabytes."""


def default_cache() -> "CaptureCache":
    """The cache of this user, beside compiled kernels (`TIEBREAK_CACHE` moves both)."""
    return CaptureCache(cache_directory() / "capture")


@dataclass
class CaptureCache:
    """A folder of captured steps. `outcome` says what became of the last one, for people."""

    folder: Path
    hits: int = field(default=0, init=False)
    outcome: str = field(default="", init=False)

    def capture(
        self, builder: Builder, model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Ref],
        example: Sequence[Tensor], state: Callable[[str], Ref],
    ) -> StepGraph:  # fmt: skip
        """As `tiebreak.engine.capture.step.capture`, from the cache where it holds this step."""
        before = self._fingerprint(model, loss, example)
        if before is None:
            return capture(builder, model, loss, batch, example, state)
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        key = _key(before, builder, [*batch, *(state(name) for name in names)])
        if (found := self._read(key, builder)) is not None:
            self.hits += 1
            self._tell(f"cached as {key[:16]}")
            return found
        first = len(builder.instructions)
        made = capture(builder, model, loss, batch, example, state)
        # A model that changes as it runs (a counter, Python's random numbers) is another one by now.
        if before == self._fingerprint(model, loss, example):
            self._write(key, builder, first, made)
        else:
            self._tell("not cached: the model does not do the same each time it is run")
        return made

    def _tell(self, outcome: str) -> None:
        self.outcome = outcome
        LOG.info("captured step: %s", outcome)

    def _fingerprint(self, model: nn.Module, loss: Callable[..., Tensor], example: Sequence[Tensor]) -> str | None:
        """None if the step cannot be told apart from others with certainty."""
        try:
            return step_fingerprint(model, loss, example)
        except NoFingerprint as reason:
            self._tell(f"not cached: {reason}")
        except Exception as reason:  # whatever is wrong with the model, capture says it better
            self._tell(f"not cached: {type(reason).__name__}: {reason}".splitlines()[0])
        return None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.step"

    def _write(self, key: str, builder: Builder, first: int, made: StepGraph) -> None:
        emitted = [(encode_instruction(i).hex(), i.origin) for i in builder.instructions[first:]]
        header: dict[str, Any] = {"streams": builder.streams, "instructions": emitted, "loss": _flat(made.loss)}
        header["gradients"] = {name: _flat(ref) for name, ref in made.gradients.items()}
        header["buffers"] = {name: _flat(ref) for name, ref in made.buffers.items()}
        text = json.dumps(header).encode()
        body = len(text).to_bytes(8, "little") + text + save(made.constants)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path(key), sha256(body).digest() + body)
            self._prune()
        except (OSError, TiebreakError) as error:
            self._tell(f"not cached: {error}")
            return
        self._tell(f"kept as {key[:16]}")

    def _prune(self) -> None:
        entries = sorted(self.folder.glob("*.step"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in entries[MAX_ENTRIES:]:
            path.unlink(missing_ok=True)

    def _read(self, key: str, builder: Builder) -> StepGraph | None:
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            data = read_file(path, MAX_ENTRY_BYTES)
            if sha256(data[32:]).digest() != data[:32]:
                raise ValueError("its checksum is another")
            length = int.from_bytes(data[32:40], "little")
            header, constants = json.loads(data[40 : 40 + length]), load(data[40 + length :])
            emitted = [(decode_instruction(bytes.fromhex(code)), origin) for code, origin in header["instructions"]]
            made = _graph(header, constants)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, TiebreakError) as error:
            LOG.warning("%s: left out, for it cannot be read: %s", path, error)
            return None
        builder.replay(emitted, header["streams"])
        return made


def _key(fingerprint: str, builder: Builder, refs: Sequence[Ref]) -> str:
    """The name of the entry: the step, and what capture finds in the builder."""
    parts = [fingerprint.encode(), repr(list(refs)).encode(), repr(builder.streams).encode()]
    parts += [encode_instruction(instruction) for instruction in builder.instructions]
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def _flat(ref: Ref) -> list[Any]:
    return list(astuple(ref))


def _ref(flat: list[Any]) -> Ref:
    value, dtype, shape, strides, offset = flat
    return Ref(int(value), DType(dtype), tuple(map(int, shape)), tuple(map(int, strides)), int(offset))


def _graph(header: dict[str, Any], constants: dict[str, Tensor]) -> StepGraph:
    return StepGraph(
        loss=_ref(header["loss"]),
        gradients={name: _ref(flat) for name, flat in header["gradients"].items()},
        buffers={name: _ref(flat) for name, flat in header["buffers"].items()},
        constants=constants,
    )
