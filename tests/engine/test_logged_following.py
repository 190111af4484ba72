"""Recording and following one sum, of every kind and precision and with any log, against the integer reference."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.logged import log_replay
from tiebreak.engine.logged.elements import toward, went_up
from tiebreak.engine.logged.journal import Recorder
from tiebreak.engine.logged.log_replay import MAX_FINDINGS, Follower
from tiebreak.protocol.numbers.float32 import INF, SIGN, decode
from tiebreak.protocol.program.isa import DType, Instruction, ReduceFunction
from tiebreak.protocol.program.reference import element
from tiebreak.protocol.program.rounding import (
    Direction,
    Entries,
    LogError,
    Rounding,
    StepLog,
    SumKind,
    element_rounding,
    neighbours,
    pack_tolerances,
    round_sum,
    sum_kind,
)

from .arithmetic_cases import Maker, elements_of, product, random_reduction, random_scatter, sum_of, tensor_of
from .logged_cases import Flipping

TOLERANCES = [0, 2, 3, 5, 9, 16, 40]
STEP = 7
CASES = 150


def rules(precision: int, tolerance: int) -> SimpleNamespace:
    packed = pack_tolerances(dict.fromkeys(SumKind, tolerance))
    return SimpleNamespace(precision=precision, tolerances=packed)


def machine(job: SimpleNamespace, tolerance: int, threshold: float | None, permute: int | None) -> Arithmetic:
    tolerances, thresholds = dict.fromkeys(SumKind, tolerance), dict.fromkeys(SumKind, threshold)
    logging = Logging(thresholds=thresholds, tolerances=tolerances)
    return Arithmetic(permute=permute, precision=job.precision, logging=logging)


def any_threshold(r: random.Random, precision: int, tolerance: int) -> float | None:
    """Proven, or some at which a share of all elements is near, or at which nearly all are summed exactly."""
    return r.choice([None, *(2.0 ** (60 - precision - tolerance - k) for k in (-3, 0, 1, 2, 3, 6, 12))])


def following(i: Instruction, log: StepLog, job: SimpleNamespace, arithmetic: Arithmetic) -> Follower:
    return Follower(SimpleNamespace(body=[i], late_spec=dict), log, job, arithmetic, STEP)  # type: ignore[arg-type]


def run(i: Instruction, operands: list[torch.Tensor], arithmetic: Arithmetic, sums: Recorder | Follower) -> list[int]:
    result, near = arithmetic.execute_logged(i, operands, STEP - 1)
    sums.settle(0, i, operands, result, near)
    return elements_of(result)


def right(i: Instruction, operands: list[torch.Tensor], job: SimpleNamespace, log: StepLog) -> list[int]:
    values, types = [elements_of(x) for x in operands], [PROTOCOL_DTYPES[x.dtype] for x in operands]
    said = dict(log.entries[0].directions()) if 0 in log.entries else {}
    return [
        element(
            i, n, lambda o, at: values[o][at], types,
            rounding=element_rounding(
                i, precision=job.precision, tolerances=job.tolerances, direction=said.get(n, Direction.NONE)
            ),
        )
        for n in range(i.numel)
    ]  # fmt: skip


def any_sum(r: random.Random) -> tuple[Instruction, list[torch.Tensor]]:
    maker = Maker(r)
    made = random_scatter(maker) if r.random() < 0.3 else random_reduction(maker, ReduceFunction.SUM, DType.F32)
    return made if r.random() < 0.3 else (made[0], [off_the_grid(r, x) for x in made[1]])


def off_the_grid(r: random.Random, x: torch.Tensor) -> torch.Tensor:
    """An f32 operand whose sums are not exact in FP64, but where one term rules: else near elements are rare."""
    if x.dtype != torch.float32:
        return x
    return torch.tensor([r.gauss(0, 1) * 2.0 ** r.choice([0, 0, -20, -33, -40]) for _ in range(x.numel())])


def any_log(r: random.Random, numel: int) -> StepLog:
    elements = np.array(sorted(n for n in range(numel) if r.random() < r.choice([0.2, 1])), dtype=np.int64)
    up = np.array([r.random() < 0.5 for _ in elements], dtype=np.bool_)
    return StepLog({0: Entries(elements, up)}) if len(elements) else StepLog()


def follows_any_log(r: random.Random) -> Counter[str]:
    """Asserts that one random sum with a random log comes out as the reference says; counts what became of entries."""
    precision, tolerance = r.choice([16, 17, 20, 24, 26, 31, 32]), r.choice(TOLERANCES)
    threshold = any_threshold(r, precision, tolerance)
    job, (i, operands) = rules(precision, tolerance), any_sum(r)
    arithmetic = machine(job, tolerance, threshold, r.choice([None, r.randint(0, 99)]))
    log = any_log(r, i.numel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_replay, "SCREENED_FROM", r.choice([1, 10**6]))
        follower = following(i, log, job, arithmetic)
        found = run(i, operands, arithmetic, follower)
    assert found == right(i, operands, job, log)
    report = follower.report
    assert report.entries == log.count
    assert report.needed + report.elsewhere <= report.entries
    assert len(report.findings) == min(MAX_FINDINGS, report.elsewhere + report.missing)
    kind = sum_kind(i)
    assert kind is not None
    return Counter({f"needed {kind.name}": report.needed, f"elsewhere {kind.name}": report.elsewhere})


def test_following_any_log_gives_the_reference_result() -> None:
    """And entries of every kind were needed, and others without effect: no green without cases."""
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        seen += follows_any_log(random.Random(seed))
    assert all(seen[f"{what} {kind.name}"] > 0 for what in ("needed", "elsewhere") for kind in SumKind), seen


def records_what_it_did(r: random.Random) -> int:
    """Asserts that one random sum is what the trainer's own log says, for an auditor too; the entries."""
    precision, tolerance = r.choice([16, 20, 26, 32]), r.choice([2, 2, 2, 3, 5])
    job, (i, operands) = rules(precision, tolerance), any_sum(r)
    trainer = machine(job, tolerance, 2.0 ** (60 - precision - tolerance - r.choice([0, 1, 2])), r.choice([None, 3]))
    recorder = r.choice([Recorder, Flipping])()
    recorder.precision = precision  # type: ignore[attr-defined]  # of the flipping one
    computed = run(i, operands, trainer, recorder)
    log = recorder.log
    assert computed == right(i, operands, job, log)
    auditor = machine(job, tolerance, any_threshold(r, precision, tolerance), r.choice([None, 4]))
    follower = following(i, log, job, auditor)
    assert run(i, operands, auditor, follower) == computed
    assert follower.report.elsewhere == 0
    return log.count


def test_following_the_trainers_log_gives_the_trainers_result() -> None:
    """So an honest trainer cannot lose, nor one that takes any liberty; and an auditor with other thresholds agrees."""
    assert sum(records_what_it_did(random.Random(seed)) for seed in range(CASES)) > CASES / 20


EDGES = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3FFFFFFF, 0x7F7FFFFE, 0x7F7FFFFF]


@pytest.mark.parametrize("precision", [32, 26, 16])
@pytest.mark.parametrize("sign", [0, SIGN])
def test_rounding_across_a_middle_follows_the_specification(precision: int, sign: int) -> None:
    """It holds at zero, among subnormals, at powers of two, and between the greatest number and infinity."""
    step = 1 << (32 - precision)
    lower = sorted({bits & -step for bits in EDGES})
    for bits in lower:
        (n, e), (m, f) = decode(bits), decode(bits + step) if bits + step < INF else (1, 128)
        low = min(e, f) - 1
        middle = (n << (e - low)) + (m << (f - low)) >> 1
        value = np.array([float(middle) * 2.0**low * (-1 if sign else 1)])
        for start in (bits, bits + step):
            own = np.array([start | sign if start else 0], dtype=np.uint32)
            assert went_up(own, value)[0] == (start != bits)
            for up in (False, True):
                said = Rounding(precision=precision, tolerance=5, direction=Direction.UP if up else Direction.DOWN)
                expected = round_sum(-middle if sign else middle, low, said)
                assert neighbours(middle, low, said) == (bits, True)
                assert toward(own, value, np.array([up]), precision).tolist() == [expected]


@pytest.mark.parametrize(("precision", "tolerance"), [(32, 2), (32, 20), (26, 5), (16, 12)])
def test_fast_screening_of_log_entries_agrees_with_exact_sums(precision: int, tolerance: int) -> None:
    i, generator = product(40, 64, 50), torch.Generator().manual_seed(5)
    operands = [torch.randn(size, generator=generator) for size in (40 * 64, 64 * 50)]
    arithmetic = Arithmetic(precision=precision)
    elements = np.arange(i.numel)
    follower = following(i, StepLog(), rules(precision, tolerance), arithmetic)
    _, near, far = follower.screened(i, operands, elements, tolerance)
    rounding = Rounding(precision=precision, tolerance=tolerance)
    totals = arithmetic.exact_sums(i, operands, elements)
    right = np.array([neighbours(*total, rounding)[1] for total in totals if total])
    assert len(right) == i.numel
    assert not (near & ~right).any()
    assert not (far & right).any()
    assert (near | far).mean() > 0.99
    assert tolerance > 5 or near.any()


def test_a_log_of_every_element_does_not_force_exact_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile log of every element costs its auditor one more product, not one exact sum for each."""
    i, generator = product(60, 32, 60), torch.Generator().manual_seed(6)
    operands = [torch.randn(60 * 32, generator=generator) for _ in range(2)]
    job, arithmetic = rules(32, 3), machine(rules(32, 3), 3, None, None)
    log = StepLog({0: Entries(np.arange(i.numel), np.ones(i.numel, np.bool_))})
    asked: list[int] = []
    exact = arithmetic.exact_sums
    monkeypatch.setattr(arithmetic, "exact_sums", lambda *a: asked.extend(a[2]) or exact(*a))
    follower = following(i, log, job, arithmetic)
    found = run(i, operands, arithmetic, follower)
    assert len(asked) < i.numel / 100
    assert found == right(i, operands, job, log)
    assert follower.report.elsewhere > i.numel / 2
    assert follower.report.needed > 0
    assert len(follower.report.findings) == MAX_FINDINGS


def test_log_entries_for_sums_without_tolerance_are_ignored() -> None:
    i, operands = sum_of([0x3F800000, 0x33800000]), [tensor_of(DType.F32, [0x3F800000, 0x33800000])]  # 1 + 2^-24: a tie
    log = StepLog({0: Entries(np.zeros(1, np.int64), np.ones(1, np.bool_))})
    for tolerance, bits, elsewhere in ((0, 0x3F800000, 1), (2, 0x3F800001, 0)):
        job, arithmetic = rules(32, tolerance), machine(rules(32, tolerance), tolerance, None, None)
        follower = following(i, log, job, arithmetic)
        assert run(i, operands, arithmetic, follower) == [bits]
        assert follower.report.elsewhere == elsewhere
        assert follower.report.needed == 1 - elsewhere
        assert [str(finding) for finding in follower.report.findings] == elsewhere * [
            "step 7, instruction 0, element 0: elsewhere: expected no entries, for the job gives this kind of sum no "
            "tolerance"
        ]


def test_a_log_with_an_out_of_range_element_is_refused() -> None:
    i = sum_of([0, 0])
    log = StepLog({0: Entries(np.array([1]), np.ones(1, np.bool_))})
    with pytest.raises(LogError, match="step 7, instruction 0, element 1: out of range"):
        following(i, log, rules(32, 2), Arithmetic())
