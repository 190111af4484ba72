"""Runs of tests/protocol/runs.py as the chain plays them: jobs with real stakes and of any precision.

Three programs: `EVERY` has every kind of instruction (tests/protocol/programs.py), `FUNCTIONS` each of the functions
10 to 16 and two long sums, one to bfloat16, for jobs of any precision, and `LATE` reads late data.
"""

import struct
from dataclasses import replace
from typing import Final

from tests.protocol import runs
from tests.protocol.instructions import committed, const, mapped, reduced, source, whole
from tests.protocol.runs import EVERY, STEPS, Setting, Tamper, honest, ordinary_element
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.isa import Access, DType, MapFunction, Opcode, ReduceFunction, SourceKind, row_major
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import StepLog

__all__ = ["EVERY", "FUNCTIONS", "LATE", "STEPS", "Liar", "Run", "Setting", "make_job", "ordinary_element"]

F32, I64 = DType.F32, DType.I64
WEIGHTS: Final = 300


def make_job(
    setting: Setting, client: Address, trainer: Address, *, clock: int = 5000, replay_time: int = 0,
    talk_time: int = 0, **options: int,
) -> Job:  # fmt: skip
    """5 steps with checkpoints at 2, 4 and 5."""
    stakes = {"reward": 10**18, "trainer_stake": 10**18, "challenger_stake": 10**17}
    times = {"challenge_window": 10_000, "clock": clock, "replay_time": replay_time, "talk_time": talk_time}
    return replace(runs.make_job(setting=setting, **options), client=client, trainer=trainer, **stakes, **times)


def _functions() -> Program:
    """w -= 2^-7 * (exp + log + tanh + erf + sin + cos)(w * x), and the sum of w * x, to bfloat16 and as the loss."""
    shape = (WEIGHTS,)
    body = [source(SourceKind.STATE, "w", F32, WEIGHTS), source(SourceKind.DATA, "x", F32, WEIGHTS), const(0x3C000000)]

    def add(function: MapFunction, *values: int) -> int:
        operands = (Access(v, 0, row_major(shape) if body[v].shape else (0,)) for v in values)
        body.append(mapped(function, F32, shape, *operands))
        return len(body) - 1

    product = add(MapFunction.MUL, 0, 1)
    total = add(MapFunction.EXP, product)
    for function in (MapFunction.LOG, MapFunction.TANH, MapFunction.ERF, MapFunction.SIN, MapFunction.COS):
        total = add(MapFunction.ADD, total, add(function, add(MapFunction.ABS, product)))
    updated = add(MapFunction.SUB, 0, add(MapFunction.MUL, total, 2))
    read = (whole(updated, shape), whole(1, shape))
    add(MapFunction.BF16, updated)
    sums = (ReduceFunction.SUM_BF16, ReduceFunction.SUM)
    body += [reduced(F32, (), shape, *read, function=function) for function in sums]
    program = Program(tuple(body), (committed("w", F32, shape, updated),))
    program.validate()
    return program


FUNCTIONS: Final = Setting(
    "functions",
    _functions(),
    {"w": struct.pack(f"<{WEIGHTS}f", *((7 * i % 31 - 15.5) / 16 for i in range(WEIGHTS)))},
    {"x": struct.pack(f"<{WEIGHTS}f", *((5 * i % 23 - 11.25) / 8 for i in range(WEIGHTS)))},
)


def _late() -> Program:
    """w += written, and the sum of w as the loss."""
    shape = (WEIGHTS,)
    body = (
        source(SourceKind.STATE, "w", F32, WEIGHTS),
        source(SourceKind.LATE, "written", F32, WEIGHTS),
        mapped(MapFunction.ADD, F32, shape, whole(0, shape), whole(1, shape)),
        reduced(F32, (), shape, whole(2, shape)),
    )
    program = Program(body, (committed("w", F32, shape, 2),))
    program.validate()
    return program


LATE: Final = Setting("late", _late(), FUNCTIONS.start, {})
WRITTEN: Final = 1
"""The source of its late data."""


def late_logs(seed: int = 0) -> runs.Logs:
    """Late data of all steps, which no two steps or seeds share."""
    numbers = [[(seed + 11 * step + i) % 97 / 16 for i in range(WEIGHTS)] for step in range(1, STEPS + 1)]
    written = {step: struct.pack(f"<{WEIGHTS}f", *found) for step, found in enumerate(numbers, start=1)}
    return runs.Logs({step: StepLog(late={"written": data}) for step, data in written.items()}, LATE.program)


class Run(runs.Run):
    def __init__(self, setting: Setting, job: Job, tamper: Tamper = honest, first: int = STEPS + 1) -> None:
        super().__init__(job, tamper, first, setting=setting)


class Liar(runs.Liar):
    """A liar of a setting: wrong in the last bit of the precision, in the last element for which it can be."""

    def __init__(self, setting: Setting, job: Job, step: int, leaf: int, *, bend_from: int = 0) -> None:
        index = ordinary_element(Run(setting, job), step, leaf)
        assert index is not None, "every element is a NaN or infinite"
        i = setting.program.instruction_at(leaf)
        to_bf16 = i.is_bf16_sum or (i.opcode, i.function) == (Opcode.MAP, MapFunction.BF16)
        bit = 16 if to_bf16 else 32 - job.precision if i.dtype is F32 else 0
        super().__init__(job, step, leaf, index, bend_from=bend_from, setting=setting, bit=bit, loss_bit=13)
