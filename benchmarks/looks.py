"""Finds which look sees which of the simulator's cheats: `python -m benchmarks.looks`.

Each cheat that computes something else than the job is played a few times in the simulator's small computation. Its
run is laid into a run directory as its trainer would publish it, signed, with all states. Each look takes all that it
can draw, so that what is counted is what a look can see and not its luck. The paper's look is taken with n = 10.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import click
import torch

from benchmarks.table import Row, placed, publish, rows_of
from tiebreak.api.auditing.audits import audit_chosen
from tiebreak.api.auditing.validating import validate
from tiebreak.api.certification import ownership
from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.engine.capture.agreement import sign_job
from tiebreak.engine.run.audit import signed_records
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import VerificationError
from tiebreak.sim.adversaries import numbers, training
from tiebreak.sim.adversaries.base import Deviating
from tiebreak.sim.world.workshop import Deviation, Workshop

PLAYS: Final = 3
SHARE: Final = 0.1
"""The share of an epoch's batches that the paper's look takes."""
MACHINE: Final = Machine(threads=1)
LOOKS: Final = ("the paper's look, n = 10", "validate", "check-ownership", "audit")


def cheats() -> dict[str, Deviation]:
    """The deviations of the cheats of a job of policy exact, by name."""
    rows = [*training.ADVERSARIES, *numbers.ADVERSARIES]
    return {one.name: one.work for one in rows if isinstance(one, Deviating) and one.needs in (None, "exact")}


@contextmanager
def published(workshop: Workshop, cheat: Deviation | None, seed: int) -> Iterator[tuple[RunDirectory, PrivateKey]]:
    """The folder of a trainer that cheats (None: of an honest one)."""
    key = new_key()
    job = workshop.job(client=key.address, trainer=key.address, nonce=seed, terms=Terms())
    work = workshop.honest(job) if cheat is None else cheat(workshop, job, Random(seed))
    assert work.kept is not None
    captured = workshop.captured
    with tempfile.TemporaryDirectory() as scratch:
        signed = sign_job(job, OFF_CHAIN, client=key, trainer=key)
        run = RunDirectory.create(Path(scratch) / "run", signed, workshop.program, captured.state, captured.data)
        for record in work.records:
            run.write_state(record.step, work.kept(record.step))
            run.append_record(record)
        head = Head(job_id=job.id, count=job.checkpoints, run_root=work.run_root(job.checkpoints))
        run.write_head(SignedHead.sign(head, OFF_CHAIN, key))
        yield run, key


def seen(run: RunDirectory, key: PrivateKey) -> dict[str, bool]:
    """Whether each look raises an alarm or convicts. key: the trainer's, which claims the run as its own."""
    records, _ = signed_records(run)
    loss = validate(run, 1.0, "all", MACHINE)
    epochs = validate(run, SHARE, "all", MACHINE, epochs=True).epochs
    try:
        made = ownership.claim(run, run.path.parent / "proof")
        asked = ownership.make_challenge(made, run.path.parent / "challenge.json", top=len(records), uniform=0)
        ownership.answer(run, made, asked, key)
        ownership.check(made, asked, MACHINE)
        owned = True
    except VerificationError:
        owned = False
    audit = audit_chosen(run, tuple(range(len(records))), records, MACHINE, quiet=True)
    found = (not all(look.passes for look in epochs), loss.fraud is not None, not owned, not audit.agrees)
    return dict(zip(LOOKS, found, strict=True))


@click.command()
@placed
def main(folder: Path) -> None:
    """Play each cheat and take each look."""
    torch.set_num_threads(1)
    workshop, rows = Workshop.open("exact"), list[Row]()
    for name, cheat in {"nothing: an honest run": None, **cheats()}.items():
        found = []
        for seed in range(1 if cheat is None else PLAYS):
            with published(workshop, cheat, seed) as (run, key):
                found.append(seen(run, key))
        shares = {look: 100 * sum(one[look] for one in found) / len(found) for look in LOOKS}
        rows += rows_of(name, "% of plays", shares)
    publish("looks", rows, f"{PLAYS} plays of each", folder=folder)


if __name__ == "__main__":
    main()
