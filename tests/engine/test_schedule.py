"""The order of execution: valid, chains where they may be, memory freed early; and buffers that are used again."""

import gc
import random
import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tests.engine.arithmetic_cases import Maker, random_reduction
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c.backend import SMALL, Buffers
from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.arithmetic.plan.sums import plan_tables, reads_each_once
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.schedule import MAX_MEMBERS, in_order, plan, reads_in_place, replacements
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import Program

SIZE = 1 << 20


def check_order(program: Program) -> tuple[Unit, ...]:
    """Every instruction once, after its operands; outputs and lifetimes as they must be. Returns the plan."""
    units = plan(program)
    order = [n for unit in units for n in unit.members]
    assert sorted(order) == list(range(len(program.body)))
    kept = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
    alive: set[int] = set()
    for unit in units:
        for n, dying in zip(unit.members, unit.dying, strict=True):
            assert all(a.value in alive for a in program.body[n].operands)
            alive.add(n)
            assert alive.issuperset(dying)
            alive.difference_update(dying)
        used_later = alive.intersection(unit.members)
        assert used_later <= set(unit.outputs) <= set(unit.members)
    assert alive == kept
    return units


def check_again(program: Program, *, prologues: bool = False) -> tuple[Unit, ...]:
    """Values are computed again from what is in memory, or from other members in place. Returns that plan.

    Nothing is stored for longer than it is read, and no more than without. A reduction comes last in its unit, reads
    each element of its prologue once, and is all that is used of it.
    """
    usual, units = plan(program, MapFunction), plan(program, MapFunction, again=True, prologues=prologues)
    kept = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
    stored: dict[int, int] = {}
    for position, unit in enumerate(units):
        inside: set[int] = set()
        assert list(unit.members) == sorted(set(unit.members))
        assert len(unit.members) <= MAX_MEMBERS
        for n in unit.members:
            i = program.body[n]
            for access in i.operands:
                if access.value in inside and i.opcode == Opcode.REDUCE:
                    assert prologues
                    assert unit.outputs == (n,) == unit.members[-1:]
                    assert plan_tables(i) is not None
                    assert reads_each_once(i, program.body[access.value].numel)
                elif access.value in inside:
                    assert reads_in_place(access, i, program.body[access.value])
                else:
                    assert access.value in stored
                    stored[access.value] = position
            inside.add(n)
        assert not stored.keys() & set(unit.outputs)  # each is stored by one unit
        stored |= dict.fromkeys(unit.outputs, position)
        for value in set().union(*unit.dying) & stored.keys():
            assert stored.pop(value) == position
    assert stored.keys() == kept
    outputs, others = ({n for unit in made for n in unit.outputs} for made in (units, usual))
    assert outputs <= others
    return units


def adam(parameters: int) -> Program:
    """A gradient after the other, each from the last, and at the end of the program the update of every parameter."""
    b = Builder()
    names = [f"p{n}" for n in range(parameters)]
    entries = {name: b.state(name, DType.F32, (SIZE,)) for name in names}
    moments = {name: b.state(f"m.{name}", DType.F32, (SIZE,)) for name in names}
    power = b.scale(b.state("power", DType.F32, ()), 0.9)
    gradients: dict[str, Ref] = {}
    carried = b.sum(entries[names[-1]])
    for name in names:
        pairs = b.mul(entries[name].unsqueeze(1).expand((SIZE, 2)), carried)
        gradients[name] = b.max(pairs, (1,))
        carried = b.sum(gradients[name])
    new = {"power": power}
    for name in names:
        moment = b.add(b.scale(moments[name], 0.9), b.scale(gradients[name], 0.1))
        new[f"m.{name}"] = moment
        new[name] = b.sub(entries[name], b.scale(b.div(moment, power), 0.01))
    return b.finish(new, carried)


def peak_bytes(
    program: Program,
    units: Sequence[Unit],
    fused: Callable[[Unit], bool] = lambda _: True,
    replaced: Collection[int] = (),
) -> int:
    """The most memory that values other than sources take at any time, in bytes.

    The intermediate results of `fused` units take no memory, nor do results that reuse `replaced` old values.
    """
    size = {n: 0 if i.opcode == Opcode.SOURCE else i.numel * i.dtype.size for n, i in enumerate(program.body)}
    size |= dict.fromkeys(replaced, 0)
    held = most = 0
    alive: set[int] = set()
    for unit in units:
        if fused(unit):
            alive.update(unit.outputs)
            held += sum(size[n] for n in unit.outputs)
            most = max(most, held)
        for n, dead in zip(unit.members, unit.dying, strict=True):
            if not fused(unit):
                alive.add(n)
                held += size[n]
                most = max(most, held)
            gone = alive.intersection(dead)
            held -= sum(size[value] for value in gone)
            alive -= gone
    return most


def test_the_optimizer_runs_as_soon_as_a_gradient_is_there() -> None:
    program = adam(5)
    units = check_order(program)
    updates = [k for k, unit in enumerate(units) if len(unit.members) >= 5]
    assert [len(units[k].outputs) for k in updates] == [2] * 5
    barriers = [k for k, unit in enumerate(units) if program.body[unit.members[0]].opcode == Opcode.REDUCE]
    assert all(any(a < k < b for a, b in pairwise(barriers)) for k in updates[:-1])
    assert len(replacements(program, units)) == 2 * 5 + 1
    new_state = 4 * SIZE * 2 * 5
    assert new_state < peak_bytes(program, units) < new_state + 4 * SIZE * 4
    given = replacements(program, units)
    assert peak_bytes(program, units, replaced=given) <= 4 * SIZE * 4
    assert peak_bytes(program, in_order(program), lambda _: False, given) > 4 * SIZE * 6


def test_only_what_a_wanted_value_follows_from_is_executed() -> None:
    program = adam(3)
    (wanted, *later) = [n for n, i in enumerate(program.body) if i.opcode == Opcode.REDUCE]
    units = in_order(program, [wanted])
    done = [n for unit in units for n in unit.members]
    read = {a.value for n in done for a in program.body[n].operands}
    assert read | {wanted} == {*done}
    assert not {*later} & {*done}
    assert {n for unit in units for dying in unit.dying for n in dying} == {*done}, "nothing stays in memory"


def test_an_old_value_that_is_read_later_keeps_its_memory() -> None:
    b = Builder()
    x, y = b.state("x", DType.F32, (8,)), b.state("y", DType.F32, (8,))
    total = b.sum(b.add(x, b.const(1.0)))
    program = b.finish({"x": b.mul(x, total), "y": b.mul(y, y.flip(0))}, b.sum(b.mul(x, b.sum(b.mul(x, total)))))
    assert replacements(program, check_order(program)) == {}


def test_results_reuse_the_memory_of_dead_values() -> None:
    """Not of what another part of the chain reads elsewhere, of what lives on, of another dtype, nor of any twice."""
    b = Builder()
    x, row = b.state("x", DType.F32, (8, 8)), b.state("row", DType.F32, (1, 8))
    sums = [b.matmul(x, b.mul(x, b.const(float(n)))) for n in range(5)]
    one = b.mul(sums[0], sums[1])
    mask = b.compare(MapFunction.LT, sums[2], row)
    turned = b.sub(sums[3], sums[3].permute((1, 0)))
    stays = b.mul(sums[4], b.const(0.5))
    out = b.sum(b.matmul(b.matmul(one, turned), b.matmul(stays, b.mul(sums[4], b.sum(stays)))))
    program = b.finish({"x": x, "row": b.sum(b.where(mask, x, row.expand((8, 8))), (0,), keepdim=True)}, out)
    units = check_again(program)
    assert replacements(program, units, MapFunction) == {}
    taken = replacements(program, units, MapFunction, values=True)
    body = program.body
    assert len(set(taken.values())) == len(taken)
    assert taken[one.value] in (sums[0].value, sums[1].value)
    assert not taken.keys() & {mask.value, turned.value, stays.value}
    assert all(body[n].dtype == body[v].dtype and body[v].opcode != Opcode.SOURCE for n, v in taken.items())


def test_only_large_gradients_are_summed_as_they_arrive() -> None:
    """Else all of them would wait for the update; to sum small ones at once would free next to nothing."""
    for size in (SIZE, 8):
        b = Builder()
        x = b.state("x", DType.F32, (size, 2))
        total, scale = b.full((size,), 0.0), b.sum(x)
        for _ in range(6):
            pairs = b.mul(x, scale)
            total, scale = b.add(total, b.max(pairs, (1,))), b.sum(pairs)
        program = b.finish({"x": b.sub(x, total.unsqueeze(1))}, scale)
        units = check_order(program)
        if size == SIZE:
            assert peak_bytes(program, units) <= 4 * SIZE * 5
        else:
            assert max(len(unit.members) for unit in units) >= 6, "all of them in one pass"


def test_reading_part_of_a_value_is_not_an_in_place_read() -> None:
    b = Builder()
    x = b.state("x", DType.F32, (8,))
    whole, part, behind = b.neg(x), b.neg(x.slice(0, 0, 4)), b.neg(x.slice(0, 4, 8))
    body = b.finish({"x": b.add(whole, b.sum(b.mul(part, behind)))}, b.sum(whole)).body
    reads = {ref.value: reads_in_place(body[ref.value].operands[0], body[ref.value], body[x.value])
             for ref in (whole, part, behind)}  # fmt: skip
    assert reads == {whole.value: True, part.value: False, behind.value: False}


def test_long_chains_are_cut_at_the_limit_and_before_transposed_reads() -> None:
    b = Builder()
    x = b.state("x", DType.F32, (8, 8))
    y = x
    for _ in range(3 * MAX_MEMBERS):
        y = b.add(y, x)
    z = b.mul(y, y.permute((1, 0)))
    program = b.finish({"x": z}, b.sum(z))
    units = [u for u in check_order(program) if program.body[u.members[0]].opcode == Opcode.MAP]
    assert [len(u.members) for u in units] == [MAX_MEMBERS] * 3 + [1, 1]
    check_again(program)


def test_only_functions_that_chains_support_are_fused() -> None:
    b = Builder()
    x = b.state("x", DType.F32, (8,))
    y = b.mul(b.map(MapFunction.LOG, b.mul(x, x)), x)
    program = b.finish({"x": y}, b.sum(y))
    assert len(plan(program)) == len(plan(program, MapFunction)) + 2


def test_schedules_of_real_and_random_steps_are_valid(tiny: Captured, cases: Callable[[int], None]) -> None:
    units, again = check_order(tiny.program), check_again(tiny.program)
    assert len(units) < len(tiny.program.body) * 0.75
    assert sum(len(unit.outputs) for unit in again) < sum(len(unit.outputs) for unit in units)
    for seed in range(60):
        draw = random.Random(seed)
        b = Builder()
        values = [b.state(f"x{n}", DType.F32, (4, 4)) for n in range(3)]
        for _ in range(draw.randint(1, 60)):
            u, v = draw.choices(values[-6:], k=2)
            match draw.randrange(7):
                case 0:
                    values.append(b.sum(u, (0,), keepdim=True).expand((4, 4)))
                case 1:
                    values.append(b.mul(u, v.permute((1, 0))))
                case 2:
                    values.append(b.map(MapFunction.TANH, u))
                case 3:
                    values.append(b.mul(u, b.const(2.0)))
                case _:
                    values.append(b.map(draw.choice([MapFunction.ADD, MapFunction.SUB]), u, v))
        program = b.finish({f"x{n}": v for n, v in enumerate(draw.choices(values, k=4))}, b.sum(values[-1]))
        cases(len(check_order(program)) + len(check_again(program)) + len(check_again(program, prologues=True)))


def test_masks_and_activations_are_recomputed_instead_of_stored() -> None:
    """A dropout mask, and a function of a product and its square, of which the gradient reads three values."""
    b = Builder()
    weight, x = b.state("w", DType.F32, (64, 64)), b.data("x", DType.F32, (64, 64))
    h = b.matmul(x, weight)
    square, tanh = b.mul(h, h), b.map(MapFunction.TANH, h)
    kept = b.cast(b.compare(MapFunction.LT, b.random((64, 64)), b.const(0.5)), DType.F32)
    y = b.mul(b.mul(b.add(square, tanh), kept), b.const(2.0))
    out = b.matmul(y, weight)
    back = b.mul(b.mul(out, kept), b.add(square, b.sub(b.const(1.0), b.mul(tanh, tanh))))
    program = b.finish({"w": b.matmul(back, x)}, b.sum(out))
    stored = [unit.outputs for unit in check_again(program) if len(unit.members) > 1]
    assert [len(outputs) for outputs in stored] == [1, 1]
    assert [len(unit.outputs) for unit in plan(program, MapFunction) if len(unit.members) > 1] == [4, 1]


def test_sources_of_recomputed_values_stay_stored() -> None:
    """The last chain reads a sum in place of its square and its double, so the one before reads it, too."""
    b = Builder()
    weight = b.state("w", DType.F32, (64, 64))
    p = b.matmul(weight, weight)
    a = b.add(p, b.matmul(p, weight))
    square, double = b.mul(a, a), b.mul(a, b.const(2.0))
    out = b.matmul(b.mul(b.matmul(b.add(square, double), weight), b.mul(a, p)), weight)
    program = b.finish({"w": b.add(b.mul(out, square), double)}, b.sum(out))
    again = [n for unit in check_again(program) for n in unit.members]
    assert sorted(n for n in again if again.count(n) > 1) == [square.value, square.value, double.value, double.value]


def test_recomputation_does_not_extend_a_full_chain() -> None:
    b = Builder()
    weight = b.state("w", DType.F32, (64, 64))
    h = b.matmul(weight, weight)
    for _ in range(20):
        h = b.mul(h, b.const(0.5))
    y = out = b.matmul(b.mul(h, h), weight)
    for _ in range(50):
        y = b.add(y, out)
    program = b.finish({"w": b.mul(y, h)}, b.sum(out))
    assert max(len(unit.members) for unit in check_again(program)) == 51


def test_values_stored_anyway_are_not_recomputed() -> None:
    """A transcendental, and a multiple of a value that would have to be read in its place, which other sums read."""
    b = Builder()
    weight = b.state("w", DType.F32, (64, 64))
    h = b.matmul(weight, weight)
    tanh, twice = b.map(MapFunction.TANH, h), b.mul(h, b.const(2.0))
    out = b.matmul(tanh, twice)
    program = b.finish({"w": b.add(b.mul(out, tanh), h)}, b.sum(b.mul(out, twice)))
    assert check_again(program) == plan(program, MapFunction)


def softmax(b: Builder, x: Ref) -> tuple[Ref, Ref]:
    """A softmax of rows that may be masked wholly, and the scores with their mask."""
    scores = b.add(x, b.data("mask", DType.F32, (64,)).expand((512, 64)))
    none = b.compare(MapFunction.EQ, scores, b.const(float("-inf")))
    some = b.max(b.cast(b.map(MapFunction.NOT, none), DType.I64), (1,), keepdim=True).expand((512, 64))
    exp = b.map(MapFunction.EXP, b.sub(scores, b.max(scores, (1,), keepdim=True).expand((512, 64))))
    share = b.div(exp, b.sum(exp, (1,), keepdim=True).expand((512, 64)))
    return b.mul(share, b.cast(some, DType.F32)), scores


def test_softmax_is_fused_into_its_maxima_and_sums() -> None:
    """Of a softmax, its result alone is stored, and everything is computed from the product before it."""
    b = Builder()
    weight = b.state("w", DType.F32, (512, 512))
    product = b.matmul(weight, b.data("x", DType.F32, (512, 64)))
    share, scores = softmax(b, product)
    program = b.finish({"w": b.matmul(share, b.data("y", DType.F32, (64, 512)))}, b.sum(b.sum(share, (0,))))
    units = check_again(program, prologues=True)
    fused = [u for u in units if len(u.members) > 1 and program.body[u.members[-1]].opcode == Opcode.REDUCE]
    assert [len(u.members) for u in fused] == [5, 2, 4]  # maxima of (scores != -inf) and of the scores, sum of exp
    assert all(scores.value in u.members for u in fused)
    large = {n for u in units for n in u.outputs if program.body[n].shape == (512, 64)}
    assert large - {n for n, i in enumerate(program.body) if i.opcode == Opcode.SOURCE} == {product.value, share.value}
    assert check_again(program) == plan(program, MapFunction, again=True)


def test_dropout_after_a_softmax_is_drawn_while_its_gradient_is_summed() -> None:
    """The shares are stored before and after it, and of the backward pass only the gradient of the scores.

    That takes the memory of a gradient that is read for the last time, or of the shares.
    """
    b = Builder()
    weight = b.state("w", DType.F32, (512, 512))
    share, _ = softmax(b, b.matmul(weight, b.data("x", DType.F32, (512, 64))))
    kept = b.cast(b.compare(MapFunction.LT, b.random((512, 64)), b.const(0.5)), DType.F32)
    y, back = b.data("y", DType.F32, (64, 512)), b.data("back", DType.F32, (512, 512))
    dropped = b.mul(share, kept)
    out = b.matmul(dropped, y)
    of_dropped = b.matmul(back, y.permute((1, 0)))
    part = b.mul(b.mul(of_dropped, kept), share)
    of_scores = b.sub(part, b.mul(share, b.sum(part, (1,), keepdim=True).expand((512, 64))))
    program = b.finish({"w": b.matmul(of_scores, y)}, b.sum(out))
    units = check_again(program, prologues=True)
    large = [n for u in units for n in u.outputs if program.body[n].shape == (512, 64)]
    computed = {n for n in large if program.body[n].opcode == Opcode.MAP}
    stored, new = b.indices[dropped.value], b.indices[of_scores.value]
    assert len(computed) == 3
    assert {stored, new} < computed
    taken = replacements(program, units, MapFunction, values=True)[new]
    assert taken in {b.indices[of_dropped.value], *computed}


def test_unprofitable_fusions_into_reductions_are_not_made() -> None:
    """Views that read an element twice, what is committed, and an entry that is written to earlier."""
    b = Builder()
    x, y = b.state("x", DType.F32, (64, 64)), b.state("y", DType.F32, (64, 64))
    new = b.mul(x, b.const(0.5))
    twice = b.mul(y, y)
    total = b.add(b.sum(new), b.sum(twice.unsqueeze(0).expand((3, 64, 64))))
    program = b.finish({"x": new, "y": b.sub(y, b.matmul(new, new))}, total)
    units = check_again(program, prologues=True)
    assert [len(u.members) for u in units if program.body[u.members[-1]].opcode == Opcode.REDUCE] == [1] * 3
    assert set(replacements(program, units, MapFunction)) == {new.value, program.commits[1].operands[0].value}


def test_reductions_that_may_fuse_prologues_have_index_tables(cases: Callable[[int], None]) -> None:
    for seed in range(300):
        i, (operand, *others) = random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.F32)
        if reads_each_once(i, operand.numel()):
            assert not others
            assert plan_tables(i) is not None
            cases(1)


def test_a_value_is_freed_after_its_last_use() -> None:
    b = Builder()
    y = b.state("x", DType.F32, (64,))
    for _ in range(40):
        y = b.add(y, b.const(1.0))
    alive: dict[int, weakref.ref[Tensor]] = {}
    most = 0

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive.values()))
        alive[leaf] = weakref.ref(tensor)
        return tensor

    machine = Interpreter(b.finish({"x": y}, b.sum(y)), Arithmetic())
    gc.disable()  # freed by reference counts alone, not when the collector happens to run
    try:
        machine.step(1, {"x": torch.zeros(64)}, {}, observe)
    finally:
        gc.enable()
    assert len(alive) > 40
    assert most <= 5  # state, constant, an operand, a result, the one before


def test_memory_is_used_again_when_the_last_tensor_over_it_dies() -> None:
    buffers = Buffers()
    count = SMALL // 4
    first = buffers.empty((count,), torch.float32)
    view, address = first[5:].view(torch.int32), first.data_ptr()
    assert address % 64 == 0
    del first
    second = buffers.empty((count,), torch.float32)
    assert second.data_ptr() != address
    view.fill_(7)
    del view
    third = buffers.empty((count // 2, 2), torch.float32)
    assert third.data_ptr() == address
    assert third.shape == (count // 2, 2)
    assert buffers.empty((count + 1,), torch.float32).data_ptr() not in (second.data_ptr(), address)


def test_unused_buffers_are_freed_after_a_step() -> None:
    def idle_bytes() -> int:
        return sum(block.nbytes for idle in buffers._idle.values() for _, block in idle)

    buffers = Buffers()
    tensor = buffers.empty((SMALL,), torch.bool)
    buffers.end_step()
    del tensor
    assert idle_bytes() > SMALL
    buffers.end_step()
    assert idle_bytes() > SMALL
    buffers.end_step()
    assert idle_bytes() == 0
    assert buffers.empty((3,), torch.int64).shape == (3,)  # the allocator's own
    assert idle_bytes() == 0
