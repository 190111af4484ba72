"""The properties and the progress of a run in its folder, as JSON data."""

from typing import Any

from tiebreak.api.machine.running import policy_words
from tiebreak.api.training.runs import check_of
from tiebreak.api.training.tasks import CHECKS
from tiebreak.engine.run.directory import RunDirectory


def status(run: RunDirectory) -> dict[str, Any]:
    """The progress of a run on the disk. `signed`: checkpoints under the last signed head, whose root is `head`."""
    job, records, metrics, heads = run.job, run.records(), run.metrics(), run.heads()
    return {
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
    }


def show(run: RunDirectory) -> dict[str, Any]:
    """The terms of a job, its roots and where it is valid."""
    domain, job = run.agreement.domain, run.job
    return {
        "job": job.id.hex(),
        "chain_id": domain.chain_id,
        "contract": f"0x{domain.contract.hex()}",
        "agreed": bool(run.agreement.trainer_signature),
        "rules": policy_words(job),
        "check": CHECKS[check_of(run)],
        **job.to_json(),
        "checkpoints": job.checkpoints,
        "instructions": len(run.program.body),
    }
