"""Runs of tests/protocol/runs.py as the chain plays them: jobs with real stakes and of any precision.

Two programs: `EVERY` has every kind of instruction (tests/protocol/programs.py), `FUNCTIONS` each of the functions
10 to 16 and two long sums, one to bfloat16, for jobs of any precision.
"""

import struct
from typing import Final

from tests.protocol import runs
from tests.protocol.runs import EVERY, INTERVAL, STEPS, Setting, Tamper, honest, ordinary_element
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    Slot,
    SourceConst,
    SourceKind,
    row_major,
)
from tiebreak.protocol.program.program import Program

__all__ = ["EVERY", "FUNCTIONS", "STEPS", "Liar", "Run", "Setting", "make_job", "ordinary_element"]

F32, I64 = DType.F32, DType.I64
WEIGHTS: Final = 300


def make_job(
    setting: Setting,
    client: Address,
    trainer: Address,
    *,
    nonce: int,
    levels: int,
    precision: int = 32,
    clock: int = 5000,
    replay_time: int = 0,
    talk_time: int = 0,
) -> Job:
    """5 steps with checkpoints at 2, 4 and 5."""
    return Job(
        client=client,
        trainer=trainer,
        program_root=setting.program.root,
        body_count=len(setting.program.body),
        state_count=len(setting.program.commits),
        data_count=len(setting.data),
        initial_state_root=state_tree(setting.state_ids(setting.start)).root,
        data_root=data_tree(setting.data_ids()).root,
        steps=STEPS,
        checkpoint_interval=INTERVAL,
        precision=precision,
        reward=10**18,
        trainer_stake=10**18,
        challenger_stake=10**17,
        challenge_window=10_000,
        clock=clock,
        replay_time=replay_time,
        talk_time=talk_time,
        audit_time=0,
        deadline=100_000,
        descent_levels=levels,
        nonce=nonce,
    )


def _source(kind: SourceKind, name: str, slot: int, dtype: DType, *shape: int) -> Instruction:
    return Instruction(opcode=Opcode.SOURCE, function=kind, dtype=dtype, shape=shape, params=Slot(slot=slot, name=name))


def _functions() -> Program:
    """w -= 2^-7 * (exp + log + tanh + erf + sin + cos)(w * x), and the sum of w * x, to bfloat16 and as the loss."""
    shape = (WEIGHTS,)
    body = [
        _source(SourceKind.STATE, "w", 0, F32, WEIGHTS),
        _source(SourceKind.DATA, "x", 0, F32, WEIGHTS),
        Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=F32, params=SourceConst(bits=0x3C000000)),
    ]

    def add(function: MapFunction, *values: int) -> int:
        operands = tuple(Access(v, 0, row_major(shape) if body[v].shape else (0,)) for v in values)
        body.append(Instruction(opcode=Opcode.MAP, function=function, dtype=F32, shape=shape, operands=operands))
        return len(body) - 1

    product = add(MapFunction.MUL, 0, 1)
    total = add(MapFunction.EXP, product)
    for function in (MapFunction.LOG, MapFunction.TANH, MapFunction.ERF, MapFunction.SIN, MapFunction.COS):
        total = add(MapFunction.ADD, total, add(function, add(MapFunction.ABS, product)))
    updated = add(MapFunction.SUB, 0, add(MapFunction.MUL, total, 2))
    read = (Access(updated, 0, row_major(shape)), Access(1, 0, row_major(shape)))
    add(MapFunction.BF16, updated)
    body += [
        Instruction(opcode=Opcode.REDUCE, function=summed, dtype=F32, reduction=shape, operands=read)
        for summed in (ReduceFunction.SUM_BF16, ReduceFunction.SUM)
    ]
    commit = Instruction(
        opcode=Opcode.COMMIT,
        dtype=F32,
        shape=shape,
        operands=(Access(updated, 0, row_major(shape)),),
        params=Slot(slot=0, name="w"),
    )
    program = Program(tuple(body), (commit,))
    program.validate()
    return program


FUNCTIONS: Final = Setting(
    "functions",
    _functions(),
    {"w": struct.pack(f"<{WEIGHTS}f", *((7 * i % 31 - 15.5) / 16 for i in range(WEIGHTS)))},
    {"x": struct.pack(f"<{WEIGHTS}f", *((5 * i % 23 - 11.25) / 8 for i in range(WEIGHTS)))},
)


class Run(runs.Run):
    """One party's run of a setting."""

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
