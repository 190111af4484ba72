"""Published proof of learning, three attacks on it, and the same thieves before `tiebreak check-ownership`.

    python -m benchmarks.ownership

A perceptron on scikit-learn's digits. A thief has the final weights of somebody's training, the data, and no training.
For the published check see `benchmarks.proof_of_learning`. For ours the thief agrees with itself on a job of its own
choice, computes by the program what it wants to be true, makes up the other states, and signs; its last state has the
stolen weights.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import torch
from torch import Tensor, nn

from benchmarks import proof_of_learning as pol
from benchmarks.table import Row, placed, publish
from tiebreak.api.certification import ownership
from tiebreak.api.machine import Machine
from tiebreak.api.machine.running import make_interpreter
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.demo.tasks.digits import TEST_IMAGES, load, loss
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task
from tiebreak.engine.run.commit import Committer
from tiebreak.engine.run.loop import exact, steps
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import VerificationError

EPOCH, EPOCHS, EVERY, RATE, TOP, UNIFORM = 11, 8, 4, 0.1, 2, 8
"""Segments of an epoch, epochs, steps of a segment; the agreed rate; draws in an epoch, and of ours in all."""
SEGMENTS: Final = EPOCH * EPOCHS
PIXELS, CLASSES = 64, 10
SHARE: Final = 0.01
"""delta as a share of d_ref. The authors ask for one far above what hardware does, and far below d_ref."""
TRIES: Final = 400
MACHINE: Final = Machine(threads=1)
ENTRIES: Final = ("model.0.weight", "model.0.bias", "model.2.weight", "model.2.bias")
Plan = Callable[[int, Tensor], Tensor | None]
"""(segment, weights before it) -> the weights to commit after it; None: those that the program gives."""


@dataclass(frozen=True, kw_only=True)
class Theft:
    """The belongings of the thieves, and the distance that the published check takes for near."""

    data: pol.Batch
    proof: pol.Proof
    start: Tensor
    d_ref: float
    reproduction: float

    @property
    def stolen(self) -> Tensor:
        return self.proof.weights[-1]

    @property
    def delta(self) -> float:
        return SHARE * self.d_ref

    def batches(self, every: int = EVERY) -> list[list[pol.Batch]]:
        return pol.drawn_batches(self.data, SEGMENTS, every, seed=9)


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def theft() -> Theft:
    """Three independent trainings, the first of them stolen."""
    images, labels = load()
    data = images[:-TEST_IMAGES].flatten(1), labels[:-TEST_IMAGES]
    runs = [
        pol.honest(pol.new_weights(seed, PIXELS, CLASSES), pol.drawn_batches(data, SEGMENTS, EVERY, seed), RATE)
        for seed in range(100, 103)
    ]
    ends = [run.weights[-1] for run in runs]
    apart = [float((ends[a] - ends[b]).norm()) for a, b in ((0, 1), (0, 2), (1, 2))]
    far = [pol.verify(run, epoch=EPOCH, top=EPOCH, delta=0.0, noise=noise()).distance for run in runs]
    return Theft(
        data=data, proof=runs[0], start=pol.new_weights(7, PIXELS, CLASSES), d_ref=sum(apart) / 3,
        reproduction=max(far),
    )  # fmt: skip


def attacks(had: Theft) -> dict[str, pol.Proof]:
    """The proofs of the thieves, and one of a thief that only draws a line, whom the published check refuses."""
    stolen, start = had.stolen, had.start
    line = pol.path(start, stolen, SEGMENTS)
    return {
        "true batches, states on a line": pol.Proof(
            weights=line, batches=had.batches(1), rates=[RATE] * SEGMENTS, gradients=0
        ),
        "synthesised data points": pol.synthesised(
            stolen, start, had.batches(1), RATE, delta=had.delta, tries=TRIES
        ),
        "infinitesimal updates": pol.infinitesimal(stolen, start, had.batches()),
        "post-hoc trajectory": pol.post_hoc(stolen, start, had.batches(), epoch=EPOCH, top=TOP),
    }  # fmt: skip


def published(had: Theft, proof: pol.Proof) -> pol.Verdict:
    """The published check of a proof."""
    return pol.verify(proof, epoch=EPOCH, top=TOP, delta=had.delta, noise=noise())


# ---------------------------------------------------------------- the same thieves before ours


def task(
    start: Tensor, data: pol.Batch, rate: float = RATE, *, count: int = SEGMENTS, every: int = EVERY,
    rates: list[float] | None = None,
) -> Task:  # fmt: skip
    """The thief's job. rates: of each segment, in units of `rate`."""
    table = None if rates is None else tuple(one for one in rates for _ in range(every))
    model = nn.Sequential(nn.Linear(PIXELS, pol.HIDDEN), nn.ReLU(), nn.Linear(pol.HIDDEN, CLASSES))
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), pol.layers(start, PIXELS, CLASSES), strict=True):
            parameter.copy_(values)
    return Task(
        name="stolen", model=model, loss=loss, optimizer=SGD(lr=rate),
        data={"images": data[0], "labels": data[1]},
        batch=Batch(size=pol.BATCH, examples=Rows(names=("images", "labels"))), steps=count * every,
        checkpoint_interval=every, schedule=table,
    )  # fmt: skip


@contextmanager
def forged(job: Task, plan: Plan) -> Iterator[tuple[ownership.OwnershipClaim, ownership.OwnershipChallenge]]:
    """The thief's claim over a run in which some states are made up, with its answer to a challenge."""
    key = new_key()
    with tempfile.TemporaryDirectory() as scratch:
        bundle = capture_bundle(job, check="none")
        run = agree_on(bundle, Path(scratch) / "run", client=key, trainer=key, terms=Terms(), domain=OFF_CHAIN)
        interpreter, state = make_interpreter(run.program, MACHINE, run.job), run.state(0)
        data = interpreter.place_data(run.data())
        with Committer(run, key=key).from_step(0) as committer:
            for segment in range(run.job.checkpoints):
                wanted, bits = plan(segment, torch.cat([state[name].flatten() for name in ENTRIES])), 0
                numbers = range(run.job.first_step(segment), run.job.last_step(segment) + 1)
                for done in steps(interpreter, state, data, numbers, sums=exact):
                    state, bits = done.result.state, done.result.loss_bits
                if wanted is not None:
                    state = {**state, **dict(zip(ENTRIES, pol.layers(wanted, PIXELS, CLASSES), strict=True))}
                committer.wait()
                committer.submit(numbers[-1], state, bits)
            committer.wait()
        made = ownership.claim(run, Path(scratch) / "proof")
        challenge = ownership.make_challenge(made, Path(scratch) / "challenge.json", TOP, UNIFORM)
        ownership.answer(run, made, challenge, key)
        yield made, challenge


def ours(had: Theft, proofs: dict[str, pol.Proof]) -> dict[str, str]:
    """The answer of `check-ownership` to each thief; empty if it is fooled."""
    synthesised, later = proofs["synthesised data points"], proofs["post-hoc trajectory"]
    line, anchors = pol.path(had.start, had.stolen, SEGMENTS), pol.path(had.start, had.stolen, EPOCHS)
    batch = synthesised.batches[-1][0]

    def behind(segment: int, weights: Tensor) -> Tensor | None:
        place = segment % EPOCH
        return None if place < TOP else torch.lerp(weights, anchors[segment // EPOCH + 1], 1 / (EPOCH - place))

    jobs: dict[str, tuple[Task, Plan]] = {
        "synthesised data points": (task(line[-2], batch, count=1, every=1), lambda _n, _w: had.stolen),
        "infinitesimal updates": (task(had.start, had.data, 1e-12), lambda n, _: line[n + 1]),
        "post-hoc trajectory": (task(had.start, had.data, 1.0, rates=list(later.rates)), behind),
    }
    return {name: _said(*job) for name, job in jobs.items()}


def _said(job: Task, plan: Plan) -> str:
    with forged(job, plan) as (made, challenge):
        try:
            ownership.check(made, challenge, MACHINE)
        except VerificationError as error:
            return str(error)
    return ""


def rows_of(had: Theft, proofs: dict[str, pol.Proof], said: dict[str, str]) -> list[Row]:
    """The results of both checks. In synthesised data points one step, the last, stands before ours."""
    rows = [
        Row(metric="of d_ref", case="reproduction of honest runs", value=100 * had.reproduction / had.d_ref, unit="%")
    ]
    for name, proof in proofs.items():
        verdict = published(had, proof)
        rows += [
            Row(metric="published check accepts", case=name, value=float(verdict.accepted), unit="1: yes"),
            Row(metric="of d_ref", case=name, value=100 * verdict.distance / had.d_ref, unit="%"),
            Row(metric="gradients / honest", case=name, value=proof.gradients / had.proof.gradients, unit="times"),
        ]
        if name in said:
            rows.append(Row(metric="ours accepts", case=name, value=float(not said[name]), unit="1: yes"))
    return rows


@click.command()
@placed
def main(folder: Path) -> None:
    """Measure the attacks against the published check and against ours."""
    torch.set_num_threads(1)
    had = theft()
    proofs = attacks(had)
    said = ours(had, proofs)
    for name, words in said.items():
        click.echo(f"{name}: {words}")
    publish("ownership", rows_of(had, proofs, said), f"d_ref {had.d_ref:.4g}, delta {SHARE:.0%}", folder=folder)


if __name__ == "__main__":
    main()
