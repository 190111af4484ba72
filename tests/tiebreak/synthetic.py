"""A made-up demo result with every field used, for the tests of the report. Its numbers mean nothing."""

import math
from hashlib import sha256

from tiebreak.demo import results


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def job(name: str, steps: int, interval: int, start: float, end: float) -> results.JobResult:
    losses = tuple(end + (start - end) * math.exp(-4 * s / steps) * (1 + 0.1 * math.sin(s)) for s in range(steps))
    return results.JobResult(
        name=name,
        summary="conv-bn-relu-pool twice, dropout, linear",
        parameters=4282,
        bodies=431,
        states=19,
        steps=steps,
        checkpoint_interval=interval,
        program_root=digest(name + "p"),
        initial_state_root=digest(name + "i"),
        data_root=digest(name + "d"),
        job_id=digest(name + "j"),
        run_root=digest(name + "r"),
        losses=losses,
        metric="test accuracy",
        metric_before=0.0861,
        metric_after=0.9306,
        seconds=7.5,
        plain_seconds=0.5,
        rounding=(
            results.RoundingCount(kind="reduce sum", elements=8_123_456, undecided=1234, integers=3, fp64_differs=2),
            results.RoundingCount(kind="map exp", elements=92_160, undecided=0, integers=0, fp64_differs=0),
        ),
    )


WALK = (
    results.WalkStep(tree="run", height=3, levels=3, index=2, position=2, note="checkpoint 3: steps 25 to 36"),
    results.WalkStep(tree="steps", height=4, levels=4, index=5, position=5, note="step 30"),
    results.WalkStep(tree="values", height=10, levels=4, index=1, position=1),
    results.WalkStep(tree="values", height=6, levels=4, index=9, position=25),
    results.WalkStep(tree="values", height=2, levels=2, index=3, position=103, note="instruction 103"),
    results.WalkStep(tree="chunks", height=2, levels=2, index=0, position=0, note="chunk 0"),
    results.WalkStep(tree="terms", height=5, levels=4, index=15, position=15),
    results.WalkStep(tree="terms", height=1, levels=1, index=0, position=30, note="terms 120 to 123"),
)
KINDS = ("descend", "select", "open steps", "open values", "open tensor", "open chunk", "select element", "prove")


def dispute(title: str, tampered: str, *, honest_trainer: bool = False, on_chain: bool = True) -> results.DisputeResult:
    loser = results.Loser.CHALLENGER if honest_trainer else results.Loser.TRAINER
    moves = tuple(
        results.Move(
            kind=KINDS[i % len(KINDS)],
            by="challenger" if KINDS[i % len(KINDS)] in ("select", "select element", "prove") else "defender",
            bytes=300 + 40 * i,
            gas=60_000 + 3_000 * i if on_chain else None,
        )
        for i in range(21)
    )
    return results.DisputeResult(
        title=title,
        tampered=tampered,
        honest_trainer=honest_trainer,
        job="digits",
        step=30,
        instruction=103,
        operation="reduce sum",
        origin="head / aten.mm",
        element=7,
        committed="0x3f800001",
        correct="0x3f800000",
        python=loser,
        contract=loser if on_chain else None,
        trainer_delta=0 if honest_trainer else -1_000_000,
        challenger_delta=-500_000 if honest_trainer else 1_000_000,
        seconds=1.5,
        moves=moves,
        walk=WALK,
    )


def result() -> results.DemoResult:
    jobs = (job("digits", 72, 12, 2.5, 0.1), job("text", 40, 8, 5.5, 2.9))
    return results.DemoResult(
        environment=(("CPU", "made up, 2 cores"), ("torch", "0.0")),
        jobs=jobs,
        audits=(
            results.AuditResult(
                job="digits",
                settings=(
                    results.Setting(name="threads", trainer="2", auditor="1"),
                    results.Setting(name="ATEN_CPU_CAPABILITY", trainer="avx512", auditor="default"),
                    results.Setting(name="order of terms", trainer="as given", auditor="random"),
                ),
                trainer_root=jobs[0].run_root,
                auditor_root=jobs[0].run_root,
                seconds=8.1,
            ),
        ),
        plain=(
            results.PlainResult(
                job="digits", settings="1 thread, default", state_sha256=digest("a"), final_loss=0.2687475
            ),
            results.PlainResult(
                job="digits", settings="2 threads, avx512", state_sha256=digest("b"), final_loss=0.2687473
            ),
        ),
        disputes=(
            dispute("Poisoned label", "one label of the batch of step 30: 3 became 5"),
            dispute("Learning rate", "learning rate of step 11: 0.05 became 0.06"),
            dispute("Flipped bit", "lowest bit of one weight in checkpoint 4"),
            dispute("False challenge", "nothing: the challenger lies", honest_trainer=True, on_chain=False),
        ),
        seconds=93.4,
    )
