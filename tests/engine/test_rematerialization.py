"""Values that are computed again or held in bfloat16 between two reads, and operands that are widened in panels."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.engine.arithmetic_cases import sum_over
from tests.engine.test_bf16 import small
from tests.parts import slow_except
from tiebreak.api.machine.interpreters import use_threads
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import backend, sums
from tiebreak.engine.arithmetic.c.backend import SMALL, Buffers
from tiebreak.engine.arithmetic.plan.chains import PreparedChain, Unit
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.run import cost, interpreter, rematerialization
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.interpreter import Interpreter, Planned
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Access, Opcode
from tiebreak.protocol.program.rounding import SumKind

from .logged_cases import TOLERANCE, WIDE


@pytest.mark.parametrize("compiled", slow_except([True, False], True))
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


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_a_step_that_does_not_fit_is_refused_by_what_the_plan_holds(
    least: int, monkeypatch: pytest.MonkeyPatch, cases: Callable[[int], None]
) -> None:
    captured, held, execute = capture_task(small("held")), list[int](), Planned.execute
    monkeypatch.setattr(rematerialization, "LEAST", least)
    monkeypatch.setattr(Interpreter, "joins", False)

    def watched(self: Planned, unit: Unit, chain: PreparedChain | None) -> None:
        execute(self, unit, chain)
        made = {t.data_ptr(): t.nbytes for n, t in self.values.items() if self.body[n].opcode != Opcode.SOURCE}
        held.append(sum(made.values()))

    monkeypatch.setattr(Planned, "execute", watched)
    machine = Interpreter(captured.program, Arithmetic())
    machine.step(1, captured.state, captured.data)
    counted, _ = cost.planned_peak(captured.program, machine.planned)
    assert max(held) <= counted <= 1.5 * max(held)
    frozen = {name: tensor.bfloat16() for name, tensor in captured.state.items() if name in captured.program.frozen}
    state = captured.state | frozen
    needed = sum(t.nbytes for t in state.values()) + cost_of(captured.program).changed_bytes + counted
    monkeypatch.setattr(cost, "memory_bytes", lambda: needed)
    machine.to_device(state)
    monkeypatch.setattr(cost, "memory_bytes", lambda: needed - 1)
    with pytest.raises(ConfigurationError, match=r"expected a step that fits into .* got one that needs about"):
        machine.to_device(state)
    cases(len(held))


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
    at_once = [buffers.empty((size,), torch.bool) for size in range(2 * SMALL, 2 * SMALL + 4)]
    for _ in range(3):
        del at_once[0]  # so that there is less than was lent at once
    buffers.empty((SMALL + 4,), torch.bool)
    assert [size - 2 * SMALL for size, idle in buffers._idle.items() if idle] == [1, 2, 4 - SMALL]
