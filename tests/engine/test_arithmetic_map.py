"""`map`: every function of the registry on every signature, torch against integers, bit for bit."""

import random
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.protocol.program.isa import MAP_SIGNATURES, Access, DType, MapFunction

from .arithmetic_cases import EDGE_F32, EDGE_I64, NON_FINITE, STYLES, Maker, check, elements_of, map_of, tensor_of

SIGNATURES = [(f, types, result) for f, found in MAP_SIGNATURES.items() for types, result in found]
EDGES = {DType.F32: EDGE_F32 + NON_FINITE, DType.I64: EDGE_I64, DType.BOOL: [0, 1]}


@pytest.mark.parametrize(("function", "types", "result"), SIGNATURES)
def test_map_functions_are_exact_on_all_edge_values(
    function: MapFunction, types: tuple[DType, ...], result: DType, cases: Callable[[int], None]
) -> None:
    """The whole product of the edge values: broadcast views, one dim per operand."""
    values = [EDGES[t] for t in types]
    shape = tuple(map(len, values))
    accesses = tuple(Access(o, 0, tuple(int(d == o) for d in range(len(types)))) for o in range(len(types)))
    found = check(
        Arithmetic(),
        map_of(function, result, shape, *accesses),
        [tensor_of(t, v) for t, v in zip(types, values, strict=True)],
    )
    cases(len(found))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_map_functions_are_exact_on_random_views(seed: int) -> None:
    make = Maker(random.Random(seed))
    function, types, result = make.random.choice(SIGNATURES)
    shape = make.dims(4, 4)
    made = [make.access(o, shape) for o in range(len(types))]
    style = make.random.choice(STYLES)
    operands = [make.tensor(t, size, style) for t, (_, size) in zip(types, made, strict=True)]
    check(Arithmetic(), map_of(function, result, shape, *(a for a, _ in made)), operands)


@pytest.mark.parametrize("function", [MapFunction.DIV, MapFunction.SQRT, MapFunction.ADD, MapFunction.MUL])
@pytest.mark.parametrize("scalar_divisor", [False, True])
def test_vectorized_operations_are_exact_on_long_vectors(function: MapFunction, scalar_divisor: bool) -> None:
    """Long enough for vector units; a divisor of rank 0 must not become a reciprocal."""
    make = Maker(random.Random(int(function)))
    count = 1500
    x, y = (make.tensor(DType.F32, count, style) for style in ("any", "wide"))
    arity = 1 if function == MapFunction.SQRT else 2
    second = Access(1, 0, (0,)) if scalar_divisor else Access(1, 0, (1,))
    operands = [x, torch.tensor([3.0]) if scalar_divisor else y][:arity]
    check(Arithmetic(), map_of(function, DType.F32, (count,), *(Access(0, 0, (1,)), second)[:arity]), operands)


def test_int64_to_float32_casts_round_once(cases: Callable[[int], None]) -> None:
    """Through FP64 the first would fall on a tie of f32 and go down."""
    values = [
        sign * ((1 << top) + (1 << (top - 24)) + rest)
        for sign, top, rest in product((1, -1), range(54, 63), (0, 1, -1))
    ]
    i = map_of(MapFunction.CAST, DType.F32, (len(values),), Access(0, 0, (1,)))
    cases(len(check(Arithmetic(), i, [tensor_of(DType.I64, values)])))
    twice = torch.tensor(values[1]).to(torch.float64).to(torch.float32)
    assert elements_of(twice.reshape(1)) != elements_of(Arithmetic().execute(i, [tensor_of(DType.I64, values)], 0)[1:2])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(-(1 << 53), 1 << 53) | st.integers(-300, 300), min_size=1, max_size=20),
    st.integers(1, 1 << 53) | st.integers(-4, 20),
    st.sampled_from([MapFunction.FLOORDIV, MapFunction.MOD]),
)
def test_integer_division_by_a_scalar_is_exact(values: list[int], divisor: int, function: MapFunction) -> None:
    """Around multiples of the divisor and around 2^52, up to which FP64 divides."""
    numbers = [n + d for n in values for d in (-n % divisor - 1, -n % divisor, 0)] if divisor > 0 else values
    i = map_of(function, DType.I64, (len(numbers),), Access(0, 0, (1,)), Access(1, 0, (0,)))
    check(Arithmetic(), i, [tensor_of(DType.I64, numbers), tensor_of(DType.I64, [divisor])])
