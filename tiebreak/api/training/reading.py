"""The properties and the progress of a run in its folder, as JSON data. Nothing here needs torch."""

import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tiebreak.engine.run.directory import MAX_NOTICE_BYTES, MAX_TITLE_BYTES, TITLE, UNCHECKED, RunDirectory, open_offer
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import ConfigurationError, printable
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import SumKind, tolerance_of
from tiebreak.protocol.tags import Digest

__all__ = ["CHECKS", "check_of", "open_directory", "open_offer", "policy_words", "show", "status"]
CHECKS: Final = {
    "full": "the program was compared with eager PyTorch",
    "slice": "the program was compared with eager PyTorch on a slice, a few of its equal layers",
    "none": "the program was never compared with eager PyTorch",
}
"""A sentence on each kind of check."""
SAMPLED: Final = "model.rollouts_sampled"
"""The state entry that is 1 as long as all rollouts were the model's samples, and then 0."""
_ONE: Final = identify(DType.F32, (), struct.pack("<f", 1.0))
_CHECKED: Final = ("completion_ids", "completion_mask", "num_items_in_batch")
"""The late data that a program with that entry checks."""
_OF_ROLLOUTS: Final = {"prompts": ("prompt_ids", "data of the job"), "advantages": ("advantages", "by the program")}
"""A part of rollouts -> the name of its late data, and where it comes from if there are none."""
_REWARD: Final = re.compile(r"model\.rollouts\.mean_reward_[0-9]+_(.*)")
"""The state entries of rewards that a program computes."""


def open_directory(directory: Path) -> RunDirectory:
    """Opens the files of a run; each is checked when it is read. Raises as `open_run` does."""
    if not directory.is_dir():
        raise ConfigurationError(f"expected the folder of a run, got {directory}; make one with `tiebreak agree`")
    return RunDirectory.open(directory)


def status(run: RunDirectory) -> dict[str, Any]:
    """The progress of a run on the disk. `signed`: checkpoints under the last signed head, whose root is `head`."""
    job, records, metrics, heads = run.job, run.records(), run.metrics(), run.heads()
    return {
        "name": name_of(run),
        "job": job.id.hex(),
        "agreed": bool(run.agreement.trainer_signature),
        "step": records[-1].step if records else 0,
        "steps": job.steps,
        "checkpoints": len(records),
        "of": job.checkpoints,
        "signed": heads[-1].head.count if heads else 0,
        "head": heads[-1].head.run_root.hex() if heads else None,
        "root": run.root(len(records)).hex() if records else None,
        "loss": metrics[-1]["loss"] if metrics else None,
        "kept_states": len(run.kept()),
        **late_words(run.program),
    }


def show(run: RunDirectory) -> dict[str, Any]:
    """The terms of a job, its roots and where it is valid."""
    domain, job = run.agreement.domain, run.job
    return {
        "name": name_of(run),
        "job": job.id.hex(),
        "chain_id": domain.chain_id,
        "contract": f"0x{domain.contract.hex()}",
        "agreed": bool(run.agreement.trainer_signature),
        "rules": policy_words(job),
        "check": CHECKS[check_of(run)],
        **job.to_json(),
        "checkpoints": job.checkpoints,
        "instructions": len(run.program.body),
        **late_words(run.program),
    }


def late_words(program: Program, ids: Mapping[str, Digest] | None = None) -> dict[str, str]:
    """The part of rollouts, or other late data -> who answers for it; empty for a program without late data.

    ids: those of the tensors of the last state, if it was checked.
    """
    late, declared, found = [*program.late_spec()], "declared", dict[str, str]()
    is_checked = SAMPLED in program.state_spec()
    if _CHECKED[0] in late:
        result = "" if ids is None else ", all of them" if ids.get(SAMPLED) == _ONE else ", which found others"
        found["rollouts"] = f"sampled, checked by the program{result}" if is_checked else declared
        found |= {name: declared if own in late else words for name, (own, words) in _OF_ROLLOUTS.items()}
        rewards = [one[1] for name in program.state_spec() if (one := _REWARD.fullmatch(name))]
        found |= {"rewards": f"by the program: {_listed(rewards)}"} if rewards else {}
    if named := [name for name in late if not (is_checked and name in _CHECKED)]:
        found[declared] = f"by the trainer: {_listed(named)}"
    return found


def _listed(names: Iterable[str]) -> str:
    """Names that a stranger gave, without what would make them look like other words of a report."""
    return ", ".join(re.sub(r"[^\w.()-]", "?", name, flags=re.ASCII) for name in names)


def check_of(run: RunDirectory) -> str:
    """One of `CHECKS`, as the folder states it; unverified."""
    with run.folder() as folder:
        if not folder.holds(UNCHECKED):
            return "full"
        return "slice" if folder.read(UNCHECKED, MAX_NOTICE_BYTES).startswith(b"slice:") else "none"


def name_of(run: RunDirectory) -> str:
    """The name of the task, as the folder states it; empty if it has none."""
    with run.folder() as folder:
        data = folder.read(TITLE, MAX_TITLE_BYTES) if folder.holds(TITLE) else b""
    return " ".join(printable(data.decode("utf-8", "replace")).split())


def policy_words(job: Job) -> str:
    """One line that describes the rules of a job."""
    if not job.is_logged:
        return f"exact, {job.precision} bits"
    tolerances = (f"{kind.name.lower()} 2^-{n}" for kind in SumKind if (n := tolerance_of(job.tolerances, kind)))
    demand = "; losses must be finite" if job.demands_finite_losses else ""
    return f"logged, {job.precision} bits, within {', '.join(tolerances) or 'no tolerance'} of a gap{demand}"
