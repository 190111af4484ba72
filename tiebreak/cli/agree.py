"""`tiebreak agree`: client and trainer sign a captured job, in a new run directory."""

from pathlib import Path

import click

from tiebreak import api
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, output_option
from tiebreak.cli.terms import job_options, show_job
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.terms import Terms


@click.command()
@click.argument("captured", type=FOLDER)
@click.option("--client-key", type=FILE, required=True, help="Key file of the client.")
@click.option("--trainer-key", type=FILE, required=True, help="Key file of the trainer.")
@output_option("run", "New or empty folder for the run.")
@job_options
def agree(
    captured: Path, client_key: Path, trainer_key: Path, output: Path, policy_file: Path | None, precision: int | None,
    terms: Terms, domain: Domain,
) -> None:  # fmt: skip
    """Sign the CAPTURED job as client and trainer, into a new run folder.

    Everything in CAPTURED is checked first. The job fixes the roots of program, initial state and data, the number of
    steps and checkpoints, rewards, stakes and clocks; both signatures bind it. This command is for when both keys are
    at hand; for two machines there are `tiebreak offer` and `tiebreak accept`. The run folder is what a trainer works
    in, and a copy of it what an auditor starts from.

    Under policy `exact` every result is the exact one, rounded. With --policy, sums near a tie go the way that the
    trainer's log says: precision and tolerances are agreed on, thresholds are each party's own, and those of the file
    are the trainer's.
    """
    run = api.runs.agree_on(
        api.bundle.load_bundle(captured),
        output,
        client=load_key(client_key),
        trainer=load_key(trainer_key),
        terms=terms,
        domain=domain,
        policy=policy_file,
        precision=precision,
    )
    show_job(run.job)
    click.echo(f"policy  {api.running.policy_words(run.job)}")
    click.echo(f"run     {output}")
