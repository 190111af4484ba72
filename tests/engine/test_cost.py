"""What a step costs, against counts by hand and against brute force."""

from collections.abc import Callable

import pytest

from tiebreak.api.builtin import digits
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.cost import cost_of, require_memory
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program


def by_hand() -> Program:
    """[2, 3] of the state times [3, 4] of the data, tanh of it, its sum as loss; the state grows by one."""
    b = Builder()
    w, x = b.state("w", DType.F32, (2, 3)), b.data("x", DType.F32, (3, 4))
    product = b.matmul(w, x)
    loss = b.sum(b.map(MapFunction.TANH, product))
    return b.finish({"w": b.add(w, b.const(1.0))}, loss)


def test_step_cost_equals_a_count_by_hand() -> None:
    cost = cost_of(by_hand())
    products, tanh, total, grown, loss = 8 * (3 + 2), 8, 7, 6, 1
    assert cost.flops == products + tanh + total + grown + loss
    assert (cost.state_bytes, cost.data_bytes) == (24, 48)
    # Product and tanh at once are 64 bytes. Then tanh, its sum (4) and, at the end, the constant (4), w + 1 (24) and
    # the loss (4); in no order more.
    assert cost.live_bytes == cost.passing_bytes == 64
    assert cost.memory_bytes == 2 * 24 + 48 + 64
    assert cost.kinds == {"map": 3, "source": 3, "reduce": 2}


def alive_at(program: Program, index: int) -> int:
    """Bytes of values made up to an instruction and read at it or later, or committed."""
    total = 0
    for value, made in enumerate(program.body[: index + 1]):
        read = any(o.value == value for later in program.body[index:] for o in later.operands)
        committed = any(commit.operands[0].value == value for commit in program.commits)
        is_input = made.opcode == Opcode.SOURCE and made.function in (SourceKind.STATE, SourceKind.DATA)
        if (read or committed or value == index) and not is_input:
            total += made.numel * made.dtype.size
    return total


def test_peak_memory_is_the_most_bytes_alive_at_once(cases: Callable[[int], None]) -> None:
    for program in (by_hand(), capture_task(digits.task(2)).program):
        peaks = [alive_at(program, index) for index in range(len(program.body))]
        assert cost_of(program).live_bytes == max(peaks)
        assert sum(cost_of(program).kinds.values()) == len(program.body)
        cases(len(peaks))


def test_a_step_too_large_for_memory_is_refused_naming_its_largest_value() -> None:
    program = capture_task(digits.task(2)).program
    require_memory(program)
    least = 2 * cost_of(program).state_bytes + cost_of(program).live_bytes
    with pytest.raises(ConfigurationError, match=r"fits into .* GiB .* instruction \d+, \w+ f32\[32, 12, .* at \w+"):
        require_memory(program, least)
    require_memory(program, 4 * least)
