"""Instructions that select, count and draw: torch against integers, bit for bit."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import scatter
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.plain.indexing import extreme
from tiebreak.engine.arithmetic.plain.random import TABLE
from tiebreak.engine.arithmetic.plan.sums import plan_scatter
from tiebreak.protocol.numbers.philox import random_bits
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction

from .arithmetic_cases import STYLES, Maker, check, elements_of, extreme_of, random_reduction, scatter_of, tensor_of

SEEDS = st.integers(0, 2**32)
DTYPES = list(DType)
NAN = 0x7FC00000


@settings(max_examples=60)
@given(SEEDS, st.sampled_from([ReduceFunction.MAX, ReduceFunction.ARGMAX]), st.sampled_from([DType.F32, DType.I64]))
def test_max_and_argmax_match_the_integer_reference(seed: int, function: ReduceFunction, dtype: DType) -> None:
    check(Arithmetic(), *random_reduction(Maker(random.Random(seed)), function, dtype))


@pytest.mark.parametrize(
    "values", [[0x80000000, 0], [0, 0x80000000], [NAN, 0x7F800000], [1, NAN, NAN], [0xFF800000] * 3]
)
@pytest.mark.parametrize("function", [ReduceFunction.MAX, ReduceFunction.ARGMAX])
def test_extremes_order_signed_zeros_and_nan_as_the_reference(values: list[int], function: ReduceFunction) -> None:
    check(Arithmetic(), extreme_of(function, (), (len(values),), (1,)), [tensor_of(DType.F32, values)])


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(DTYPES))
def test_gather_matches_the_integer_reference(seed: int, dtype: DType) -> None:
    make = Maker(random.Random(seed))
    r = make.random
    shape = make.dims(3, 4)
    bound, stride = r.randint(1, 6), r.choice([1, 2, 5, -1, -3, 0])
    rows = r.random() < 0.5 and len(shape) > 1  # an embedding: the table map and the index read different dims
    cut = r.randint(1, len(shape) - 1) if rows else 0
    table, size = make.access(0, shape, dead=range(cut))
    index, indices = make.access(1, shape, dead=range(cut, len(shape)) if rows else ())
    reach = stride * (bound - 1)
    table = Access(0, table.offset - min(0, reach), table.strides)
    params = isa.GatherParams(index_stride=stride, bound=bound)
    i = Instruction(opcode=Opcode.GATHER, dtype=dtype, shape=shape, operands=(table, index), params=params)
    j = tensor_of(
        DType.I64, [r.choice([r.randint(0, bound - 1), r.randint(-2, bound + 1), -(1 << 63)]) for _ in range(indices)]
    )
    check(Arithmetic(), i, [make.tensor(dtype, size + abs(reach)), j])


@settings(max_examples=60)
@given(SEEDS, st.just(32) | st.integers(16, 32))
def test_scatter_sum_matches_the_integer_reference(seed: int, precision: int) -> None:
    make = Maker(random.Random(seed))
    r = make.random
    shape = tuple(r.randint(1, 4) for _ in range(r.randint(1, 3)))
    reduction = make.dims(2, 5)
    matched = sorted(r.sample(range(len(shape)), r.randint(1, len(shape))))
    box = isa.row_major(tuple(shape[d] for d in matched))
    match = tuple(box[matched.index(d)] if d in matched else 0 for d in range(len(shape)))
    source, size = make.access(0, (*shape, *reduction), dead=matched)
    index, indices = make.access(1, (*shape, *reduction), dead=matched)
    i = scatter_of(shape, reduction, source, index, match)
    top = max(1, r.choice([1, 2, 30]))
    operands = [
        make.tensor(DType.F32, size, r.choice(STYLES)),
        tensor_of(DType.I64, [r.randint(-1, top) for _ in range(indices)]),
    ]
    for compiled in (True, False):
        check(Arithmetic(precision=precision, compiled=compiled), i, operands)
        check(Arithmetic(precision=precision, permute=seed, compiled=compiled), i, operands)


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(DTYPES), st.sampled_from(list(isa.WindowFunction)))
def test_window_matches_the_integer_reference(seed: int, dtype: DType, function: isa.WindowFunction) -> None:
    make = Maker(random.Random(seed))
    r = make.random
    shape = make.dims(3, 6)
    lo = tuple(r.randint(0, n - 1) for n in shape)
    hi = tuple(r.randint(a + 1, n) for a, n in zip(lo, shape, strict=True))
    fill = {DType.F32: r.choice([0, 0x80000000, 0xFF800000, NAN, 1]), DType.I64: (1 << 64) - 5, DType.BOOL: 1}[dtype]
    params = isa.WindowParams(
        lo=lo,
        hi=hi,
        step=tuple(r.randint(1, 3) for _ in shape),
        fill=fill if function == isa.WindowFunction.FILL else 0,
    )
    made = [make.access(0, params.extents), make.access(1, shape)][: 1 + (function == isa.WindowFunction.ELSE)]
    operands = tuple(a for a, _ in made)
    i = Instruction(opcode=Opcode.WINDOW, function=function, dtype=dtype, shape=shape, operands=operands, params=params)
    check(Arithmetic(), i, [make.tensor(dtype, size) for _, size in made])


@settings(max_examples=40)
@given(SEEDS)
def test_iota_wraps_around_at_64_bits(seed: int) -> None:
    make = Maker(random.Random(seed))
    shape = make.dims(4, 4)
    choice = [0, 1, -1, 3, (1 << 63) - 1, -(1 << 63)]
    params = isa.IotaParams(offset=make.random.choice(choice), strides=tuple(make.random.choice(choice) for _ in shape))
    check(Arithmetic(), Instruction(opcode=Opcode.IOTA, dtype=DType.I64, shape=shape, params=params), [])


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(DType.F32, b) for b in (0, 0x80000000, NAN, 1, 0xFF800000)]
    + [(DType.I64, b) for b in (0, (1 << 64) - 1, 1 << 63)]
    + [(DType.BOOL, 1)],
)
def test_constants_keep_their_exact_bits(dtype: DType, bits: int) -> None:
    i = Instruction(opcode=Opcode.SOURCE, function=isa.SourceKind.CONST, dtype=dtype, params=isa.SourceConst(bits=bits))
    check(Arithmetic(), i, [])


def test_the_step_source_yields_the_step_number() -> None:
    i = Instruction(opcode=Opcode.SOURCE, function=isa.SourceKind.STEP, dtype=DType.I64)
    assert check(Arithmetic(), i, [], step=41) == [41]


@pytest.mark.parametrize(("opcode", "function"), [(Opcode.SOURCE, isa.SourceKind.STATE), (Opcode.COMMIT, 0)])
def test_arithmetic_refuses_instructions_that_the_interpreter_provides(opcode: Opcode, function: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Arithmetic().execute(Instruction(opcode=opcode, function=function, dtype=DType.F32), [], 0)


def draws(shape: tuple[int, ...], stream: int, offset: int = 0) -> Instruction:
    """Random numbers by the seed at this offset of the first operand, and the step that is the second."""
    operands = tuple(Access(o, offset * (o == 0), (0,) * len(shape)) for o in range(2))
    params = isa.RandomParams(stream=stream)
    return Instruction(opcode=Opcode.RANDOM, dtype=DType.F32, shape=shape, operands=operands, params=params)


@pytest.mark.parametrize(("seed", "shape"), [(0, ()), (-1, (3,)), (1 << 40, (5, 7)), (-(1 << 63), (2, 3, 4))])
def test_random_draws_match_the_integer_reference(seed: int, shape: tuple[int, ...]) -> None:
    i = draws(shape, (1 << 32) - 1, offset=1)
    check(Arithmetic(), i, [tensor_of(DType.I64, [9, seed]), tensor_of(DType.I64, [(1 << 33) + 5])])


def test_random_element_numbers_continue_across_blocks() -> None:
    """Blocks are made some 32 thousand at a time: the element numbers go on."""
    make = [tensor_of(DType.I64, [x]) for x in (7, 3)]
    i = draws((4 * (1 << 15) + 9,), 2)
    found = elements_of(Arithmetic().execute(i, make, 0))
    assert found[:4] == check(Arithmetic(), draws((4,), 2), make)
    assert len(set(found[-9:])) == 9
    assert found[-9:] == [random_bits(7, 3, 2, n) for n in range(len(found) - 9, len(found))]


def shuffled(shape: tuple[int, ...], n: int, *strides: tuple[int, ...]) -> Instruction:
    """A permutation of n; strides: of indices, seed and epochs."""
    operands = tuple(Access(o, 0, each) for o, each in enumerate(strides))
    params = isa.ShuffleParams(n=n, stream=4)
    return Instruction(opcode=Opcode.SHUFFLE, dtype=DType.I64, shape=shape, operands=operands, params=params)


@pytest.mark.parametrize("n", [1, 2, 5, 17, 100, TABLE + 1, 1 << 40])
def test_shuffle_is_a_permutation_and_matches_the_reference(n: int, cases: Callable[[int], None]) -> None:
    last = [*range(min(n, 100)), n - 1, n, -1, -(1 << 63)]
    index = tensor_of(DType.I64, last)
    i = shuffled((len(last), 2), n, (1, 0), (0, 0), (0, 1))
    found = check(Arithmetic(), i, [index, tensor_of(DType.I64, [-3]), tensor_of(DType.I64, [0, 1 << 35])])
    if n <= 100:
        assert sorted(found[: 2 * n : 2]) == list(range(n))
    cases(len(found))


def test_cached_shuffle_tables_stay_right_over_many_epochs() -> None:
    """More epochs than tables, on one instance, each twice."""
    i = shuffled((30,), 30, (1,), (0,), (1,))
    arithmetic, index = Arithmetic(), tensor_of(DType.I64, list(range(30)))
    results = set()
    for seed in (1, 2, 1):
        for epochs in ([n % 9 for n in range(30)], *([e] * 30 for e in (0, 1, 0, 1 << 32))):
            found = check(arithmetic, i, [index, tensor_of(DType.I64, [seed]), tensor_of(DType.I64, epochs)])
            results.add(tuple(found))
    assert len(results) == 2 * 3  # epoch 2^32 is epoch 0


@pytest.mark.parametrize("function", [ReduceFunction.MAX, ReduceFunction.ARGMAX])
@pytest.mark.parametrize("style", STYLES)
def test_compiled_window_extremes_match_pure_torch(
    function: ReduceFunction, style: str, cases: Callable[[int], None]
) -> None:
    """More outputs than a tile has, whose terms lie side by side or apart, on several threads."""
    images = Maker(random.Random(5)).tensor(DType.F32, 3 * 40 * 40, style)
    images[[1, 41, 1700]] = float("nan")
    shapes = [(2, 2), (3, 3), (1, 3), (40,), (2,)]
    with limited(3):
        for reduction in shapes:
            shape = (3, 19, 19) if len(reduction) == 2 else (3, 40)
            strides = (1600, 80, 2, 40, 1) if len(reduction) == 2 else (1600, 1, 40)
            i = extreme_of(function, shape, reduction, strides)
            found, right = Arithmetic().execute(i, [images], 0), extreme(i, [images])
            assert found.dtype == right.dtype
            assert elements_of(found) == elements_of(right)
            cases(found.numel())


def pooling(images: int, side: int, out: int) -> Instruction:
    """Gradient of max-pool: in each image `out` sources go to places of a side x side box."""
    source, index = (Access(o, 0, (out, 0, 0, 1)) for o in range(2))
    return scatter_of((images, side, side), (out,), source, index, (0, side, 1))


def embedding(keys: int, width: int, count: int) -> Instruction:
    """Its gradient: `count` rows of `width` go to the rows that `count` indices name."""
    return scatter_of((keys, width), (count,), Access(0, 0, (0, 1, width)), Access(1, 0, (0, 0, 1)), (1, 0))


@pytest.mark.skipif(scatter.build().library is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("instruction", "sources", "indices", "top"),
    [
        (embedding(50, 700, 300), 700 * 300, 300, 50),
        pytest.param(embedding(5000, 300, 500), 300 * 500, 500, 4999, marks=pytest.mark.slow),
        pytest.param(pooling(70, 30, 400), 70 * 400, 70 * 400, 905, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("style", slow_except(["ties", "any"], "ties"))
def test_compiled_scatter_sums_match_pure_torch(
    instruction: Instruction, sources: int, indices: int, top: int, style: str, cases: Callable[[], None]
) -> None:
    """The sizes need several threads and tasks."""
    source = Maker(random.Random(sources)).tensor(DType.F32, sources, style)
    index = torch.randint(-1, top + 1, (indices,), generator=torch.Generator().manual_seed(1))
    assert plan_scatter(instruction).tables is not None
    pure = Arithmetic(compiled=False)
    right = pure.execute(instruction, [source, index], 0)
    for threads, permute in ((1, None), (2, None), (3, 4)):
        compiled = Arithmetic(permute=permute)
        with limited(threads):
            found = compiled.execute(instruction, [source, index], 0)
        assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
        assert torch.equal(found.isnan(), right.isnan())
        assert pure.stats.of("scatter_sum").elements == compiled.stats.of("scatter_sum").elements
        cases()
