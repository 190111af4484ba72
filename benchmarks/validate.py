"""The cost of a cheap look: `tiebreak validate --share 10%` against a whole replay, for the demo's runs and GPT-2 124M.

    python -m benchmarks.validate [NAME ...]

Both start from an interpreter that is made, with data that are placed, and take turns. The demo's runs are so short
that a tenth of their checkpoints is one, and its first step, at which instructions are planned and the order of an
epoch is computed, weighs as much as many others. So each is measured ten times as long, too.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import click

from benchmarks.table import Row, interleaved, placed, publish, rows_of
from benchmarks.workloads import WORKLOADS
from tiebreak.api.auditing.audits import audit_chosen
from tiebreak.api.auditing.validating import validate
from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on, continue_run
from tiebreak.engine.run.audit import signed_records
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.terms import Terms

SHARE: Final = 0.1
CASES: Final = (("digits", 72, 3), ("digits", 720, 3), ("text", 40, 3), ("text", 400, 3), ("gpt2", 100, 1))
"""Steps, and how often each is measured: GPT-2 takes ten minutes, and 16 GB of disk."""


def measure(name: str, steps: int, repeats: int) -> list[Row]:
    """Seconds of the looks and of a replay."""
    client, trainer = new_key(), new_key()
    with tempfile.TemporaryDirectory() as scratch:
        task = WORKLOADS["gpt2"]() if name == "gpt2" else load_task(name, steps=steps)
        bundle = capture_bundle(task, check="none")
        run = agree_on(bundle, Path(scratch) / "run", client=client, trainer=trainer, terms=Terms(), domain=OFF_CHAIN)
        machine = Machine()
        continue_run(run, machine, key=trainer, until=None, keep="all", on_progress=lambda _: None,
                     on_commit=lambda _: None)  # fmt: skip
        records, _ = signed_records(run)
        seconds: dict[str, list[float]] = {"replay": [], "validate": [], "epochs": []}

        def replay() -> None:
            done = audit_chosen(run, tuple(range(len(records))), records, machine, quiet=True)
            assert done.agrees
            seconds["replay"].append(done.seconds)

        def look(turn: list[int]) -> None:
            turn.append(len(turn))
            found = validate(run, SHARE, str(len(turn)), machine, epochs=True)
            assert found.fraud is None
            seconds["validate"].append(found.seconds)
            seconds["epochs"].append(found.epoch_seconds)

        interleaved({"replay": replay, "look": partial(look, [])}, repeats, warmup=int(repeats > 1))
        job = run.job
    taken = {what: sorted(values)[len(values) // 2] for what, values in seconds.items()}
    case = f"{name}, {job.steps} steps, a checkpoint every {job.checkpoint_interval}"
    rows = rows_of(case, "s", {"replay": taken["replay"], "validate --share 10%": taken["validate"]})
    shares = {"validate / replay": taken["validate"], "the paper's epochs / replay": taken["epochs"]}
    shares = {what: 100 * seconds / taken["replay"] for what, seconds in shares.items()}
    return rows + rows_of(case, "%", shares, {"validate / replay": "<= 2.5"})


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted({name for name, _, _ in CASES})))
@placed
def main(names: tuple[str, ...], folder: Path) -> None:
    """Measure both looks of `tiebreak validate` against a whole replay of NAMES (default: all)."""
    chosen = [case for case in CASES if case[0] in names or not names]
    publish("validate", [row for case in chosen for row in measure(*case)], "medians", folder=folder)


if __name__ == "__main__":
    main()
