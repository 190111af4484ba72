"""The weights that come out of a job, for its client: checked against what was signed and settled, then written."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors.torch import save_file

from tiebreak.api.certification.folders import ADAPTER, ADAPTER_WEIGHTS, WEIGHTS
from tiebreak.api.chain import boards, endings
from tiebreak.api.training import runs, tasks
from tiebreak.engine.data.disk import Folder, storing
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import signed_records
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.tags import Digest

CONFIGURATION: Final = (".json", ".txt", ".model", ".jinja")
"""Suffixes of the other files in that layout: configuration and tokenizer, as text or as data. No code is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenWeights:
    """A report of the weights written. settled: whether a board says that the job ended with this run."""

    path: Path
    tensors: int
    parameters: int
    step: int
    state_root: Digest
    settled: bool


def settled_root(run: RunDirectory, rpc: str | None) -> bool:
    """Checks the run's last head against the board that the job names; whether there is one.

    Raises `ConfigurationError` if the job is for a chain and `rpc` is None, `StateError` if the job is not settled,
    and `VerificationError` if it was settled with another head than this folder's.
    """
    if not run.agreement.domain.chain_id:
        return False
    if rpc is None:
        raise ConfigurationError("expected --rpc of the chain on which the job is settled, or --unsettled, got neither")
    endings.check_settled(boards.board_of(rpc, run), signed_records(run)[1].head)
    return True


def write_weights(
    folder: Path, output: Path, *, rpc: str | None = None, like: Path | None = None, unsettled: bool = False
) -> WrittenWeights:
    """Writes the final weights of a run as .safetensors, under the keys of the module's `state_dict`.

    Signature, records and state are checked from the head down to each tensor. output: a new file; with `like`, a new
    or empty folder in the layout of `save_pretrained`, in which configuration and tokenizer are copied from `like`; if
    that is the folder of an adapter, of which the configuration is enough, then the adapter alone.
    unsettled: do not ask a board. Raises `StateError` if the run is not finished, or its final state is not there.
    """
    run = RunDirectory.open(folder)
    records, _ = signed_records(run)
    if len(records) != run.job.checkpoints:
        raise StateError(f"expected a signed head of all {run.job.checkpoints} checkpoints, got one of {len(records)}")
    settled = not unsettled and settled_root(run, rpc)
    # The root in the signed record covers every tensor, so `state` refuses a file in which one of them differs.
    adapter = like is not None and (like / ADAPTER).is_file()
    tensors = tasks.as_state_dict(
        run.state(run.job.steps, records[-1].state_root, narrow=True), runs.names_of(run, adapter=adapter)
    )
    if like is None:
        if output.exists():
            raise ConfigurationError(f"{output} already exists; choose another file")
        path = output
    else:
        with Folder.make(output) as made:
            if made.names():
                raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another or empty it")
        path = output / (ADAPTER_WEIGHTS if adapter else WEIGHTS)
        for file in sorted(like.iterdir()):
            if file.suffix in CONFIGURATION and file.is_file() and not file.name.endswith(".index.json"):
                shutil.copyfile(file, output / file.name)
    part = path.with_name(f".{path.name}.part")
    with storing(path), Folder(path.parent) as beside:
        save_file(tensors, part, metadata={"format": "pt"})
        beside.rename(part.name, path.name)
    return WrittenWeights(
        path=output, tensors=len(tensors), parameters=sum(tensor.numel() for tensor in tensors.values()),
        step=run.job.steps, state_root=records[-1].state_root, settled=settled,
    )  # fmt: skip
