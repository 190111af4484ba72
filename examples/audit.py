"""A run that can be disputed: a client and a trainer sign it, and an auditor checks a random part of it.

python examples/audit.py --directory runs/signed
tiebreak audit runs/signed --sample 3           # the same from a shell
"""

import argparse
import secrets
from collections.abc import Sequence

import torch
from torch import nn

import tiebreak


def main(arguments: Sequence[str] | None = None) -> tiebreak.SegmentAudit:
    """Agrees on a job, trains it and audits it; returns the result of the audit."""
    parser = argparse.ArgumentParser(description="A signed run and its audit")
    parser.add_argument("--directory", default="runs/signed")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sample", type=int, default=3)
    options = parser.parse_args(arguments)

    # Each party has its own key, in its own encrypted file (`tiebreak key client.pem`). This example makes up both.
    client, trainer = tiebreak.new_key(), tiebreak.new_key()

    x = torch.linspace(-1, 1, 256).reshape(-1, 1)
    run = tiebreak.agree(
        nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)),
        nn.MSELoss(),
        optimizer=tiebreak.Adam(lr=1e-2),
        data={"x": x, "y": (3 * x).sin()},
        batch=32,
        steps=options.steps,
        checkpoint_every=6,
        directory=options.directory,
        client=client,
        trainer=trainer,
        terms=tiebreak.Terms(reward=10**18, trainer_stake=2 * 10**18),
    )
    run.resume(trainer)
    print(f"the trainer signed {run.signed} checkpoints; run root {run.root}")

    # The seed is drawn after the trainer has signed, so the trainer could not know which part would be checked.
    audit = run.audit(sample=options.sample, seed=secrets.token_hex(16))
    for report in audit.checked:
        verdict = "agrees" if report.agrees else "IS NOT WHAT THE PROGRAM PRODUCES"
        print(f"steps {report.first_step} to {report.last_step}: {verdict}")
    print(
        f"{audit.steps} steps computed again, {audit.total - len(audit.checked)} of {audit.total} segments not checked"
    )
    return audit


if __name__ == "__main__":
    main()
