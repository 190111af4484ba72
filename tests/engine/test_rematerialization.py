"""Values that are computed again or held in bfloat16 between two reads, and operands that are widened in panels."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.engine.arithmetic_cases import sum_over
from tests.engine.test_bf16 import small
from tiebreak.api.machine.interpreters import use_threads
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import backend, sums
from tiebreak.engine.arithmetic.c.backend import SMALL, Buffers
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.run import interpreter, rematerialization
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import Access
from tiebreak.protocol.program.rounding import SumKind

from .logged_cases import TOLERANCE, WIDE


@pytest.mark.parametrize("compiled", [True, False])
def test_steps_in_less_memory_have_the_same_bits(
    compiled: bool, monkeypatch: pytest.MonkeyPatch, cases: Callable[[int], None]
) -> None:
    captured = capture_task(replace(small("held"), steps=20))
    machines = [Interpreter(captured.program, Arithmetic())]
    monkeypatch.setattr(rematerialization, "LEAST", 0)
    monkeypatch.setattr(rematerialization, "BUDGET", 1)
    monkeypatch.setattr(interpreter, "REUSED", 0)
    machines.append(less := Interpreter(captured.program, Arithmetic(compiled=compiled)))
    made = [n for unit in less.planned for n in unit.outputs]
    assert len(made) > len(set(made))
    narrowed, widened = (sorted(n for unit in less.planned for n in getattr(unit, k)) for k in ("narrowed", "widened"))
    assert narrowed == widened
    assert narrowed
    states = [each.to_device(captured.state) for each in machines]
    for number in range(1, 21):
        found = [
            each.step(number, state, each.place_data(captured.data), donate=number > 1)
            for each, state in zip(machines, states, strict=True)
        ]
        states = [result.state for result in found]
        assert found[0].loss_bits == found[1].loss_bits
        assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    cases(number)


def test_logged_sums_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture_task(small("held")).program
    monkeypatch.setattr(rematerialization, "LEAST", 0)
    logging = Logging(thresholds=dict.fromkeys(SumKind, WIDE), tolerances=dict.fromkeys(SumKind, TOLERANCE))
    made = [n for unit in Interpreter(program, Arithmetic(logging=logging)).planned for n in unit.members]
    assert sorted(made) == list(range(len(program.body)))


@pytest.mark.parametrize("threads", [1, 2])
def test_panels_of_an_operand_in_bfloat16_have_the_same_sums(
    threads: int, monkeypatch: pytest.MonkeyPatch, cases: Callable[[int], None]
) -> None:
    generator, permuted = torch.Generator().manual_seed(1), Arithmetic(permute=2)
    wide, other = (torch.randn(60, 100, generator=generator).bfloat16().float() for _ in range(2))
    shapes = [  # sizes and terms; strides of the operand in bfloat16; of the other one; the first place
        ((40, 100), (60,), (0, 60, 1), (60, 0, 1), 0),
        ((40, 100), (60,), (0, 1, 100), (60, 0, 1), 0),
        ((90, 40), (59,), (1, 0, 100), (0, 60, 1), 105),
        ((90, 40), (59,), (60, 0, 1), (0, 1, 100), 7),
    ]
    use_threads(threads)
    split, panels = sums.TabledSum._part, list[range]()
    for (shape, terms, strides, others, first), swapped in product(shapes, (False, True)):
        accesses = Access(0, first, strides), Access(1, 0, others)
        i = sum_over(shape, terms, *(reversed(accesses) if swapped else accesses))
        given = [[tensor, other] for tensor in (wide, wide.bfloat16())]
        expected, *found = (
            each.execute(i, x[::-1] if swapped else x, 0)
            for each, x in ((Arithmetic(), given[0]), (Arithmetic(), given[1]), (permuted, given[1]))
        )
        monkeypatch.setattr(sums, "PANEL", 1 << 12)
        monkeypatch.setattr(sums.TabledSum, "_part", lambda *x: (panels.append(x[2]), split(*x))[1])
        found += [each.execute(i, given[1][::-1] if swapped else given[1], 0) for each in (Arithmetic(), permuted)]
        monkeypatch.undo()
        assert all(torch.equal(expected, one) for one in found)
    use_threads(1)
    assert len(panels) > 4 * len(shapes)
    cases(2 * len(shapes))


def test_the_oldest_idle_memory_is_freed_before_more_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "IDLE", 3 * SMALL)
    buffers = Buffers()
    for size in range(SMALL, SMALL + 3):  # given back in this order
        buffers.empty((size,), torch.bool)
    assert [size - SMALL for size, idle in buffers._idle.items() if idle] == [0, 1, 2]
    buffers.empty((SMALL + 3,), torch.bool)
    assert [size - SMALL for size, idle in buffers._idle.items() if idle] == [1, 2, 3]
