"""Generates the test vectors that Python, torch and Solidity share: `python -m tests.vectors.generate DIR [--check]`.

Deterministic: every choice comes from SHAKE-128 of a name. The formats are those of tests/vectors/README.md. Without
`--check` the files are written; with it they are compared, and each that differs is named (exit status 1).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from tests.vectors import inputs
from tests.vectors.instructions import all_cases, evaluate, hex_of
from tests.vectors.late import late
from tests.vectors.posts import posted
from tests.vectors.rounding import logs, roundings
from tests.vectors.seats import receipts, seats
from tests.vectors.snapshots import snapshots
from tests.vectors.transcendentals import bulk
from tiebreak.protocol.commitments import records as commitments
from tiebreak.protocol.numbers.float32 import INF, MAX_PRECISION, MIN_PRECISION, NAN_BITS, ONE, SIGN
from tiebreak.protocol.numbers.philox import philox4x32, random_bits, shuffle
from tiebreak.protocol.program.accumulator import Accumulator, Kind, add_term, encode, finish, initial
from tiebreak.protocol.program.isa import MAP_SIGNATURES, TRANSCENDENTALS, DType, MapFunction
from tiebreak.protocol.program.program import encode_instruction, instruction_digest
from tiebreak.protocol.program.reference import scalar
from tiebreak.protocol.program.rounding import Rounding
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree, pad

Json = dict[str, Any]
_PRECISIONS: Final = (16, 24, 28)
"""Precisions below 32 that the transcendentals are given for too."""
_ALL_PRECISIONS: Final = range(MIN_PRECISION, MAX_PRECISION + 1)


def _word(x: int) -> bytes:
    return x.to_bytes(8, "big")


def _inputs(function: MapFunction, types: tuple[DType, ...]) -> Iterator[tuple[int, ...]]:
    """Operand tuples for a function and its operand dtypes."""
    if DType.BOOL in types:
        sample: dict[DType, Sequence[int]] = {
            DType.BOOL: (0, 1),
            DType.F32: (*inputs.EDGES, SIGN, ONE | SIGN),
            DType.I64: inputs.I64_EDGES,
        }
        yield from product(*(sample[dtype] for dtype in types))
    elif types == (DType.F32, DType.F32):
        heavy = function in (MapFunction.ADD, MapFunction.SUB, MapFunction.MUL, MapFunction.DIV)
        yield from inputs.f32_pairs(function, 150 if heavy else 30)
    elif types == (DType.F32,):
        heavy = function in TRANSCENDENTALS or function in (MapFunction.SQRT, MapFunction.CAST)
        yield from ((x,) for x in inputs.f32_singles(function, 120 if heavy else 20))
    elif types == (DType.I64, DType.I64):
        yield from inputs.i64_pairs(60)
    else:
        yield from ((x,) for x in inputs.i64_singles(60))


def _group(function: MapFunction, types: tuple[DType, ...], result: DType, precision: int) -> Json:
    """One blob: per case, each operand and then the result as a big-endian word of 8 bytes."""
    blob = bytearray()
    count = 0
    for values in _inputs(function, types):
        for dtype, value in zip(types, values, strict=True):
            blob += _word(inputs.raw(dtype, value))
        blob += _word(inputs.raw(result, scalar(function, types, result, values, precision)))
        count += 1
    return {
        "function": int(function),
        "operandTypes": hex_of(bytes(types)),
        "resultType": int(result),
        "precision": precision,
        "count": count,
        "cases": hex_of(bytes(blob)),
    }


def scalars() -> Json:
    """Every signature of every function of `map`; transcendentals at lower precisions too."""
    groups = {}
    for function, signatures in MAP_SIGNATURES.items():
        for types, result in signatures:
            name = "_".join([function.name, *(t.name for t in types), *([result.name] if function == 28 else [])])
            groups[name.lower()] = _group(function, types, result, 32)
        if function in TRANSCENDENTALS:
            for precision in _PRECISIONS:
                groups[f"{function.name}_f32_b{precision}".lower()] = _group(
                    function, (DType.F32,), DType.F32, precision
                )
    return {"names": list(groups), **groups}


def _terms(kind: Kind, s: inputs.Stream) -> tuple[int, ...]:
    few = (0, SIGN, 1, ONE, ONE | SIGN, INF, INF | SIGN, NAN_BITS, 0x7F7FFFFF)
    if kind in (Kind.I64_SUM, Kind.I64_MAX, Kind.I64_ARGMAX):
        return ((inputs.I64_EDGES[s.below(len(inputs.I64_EDGES))] if s.bits(1) else s.i64()),)
    if kind.is_f32_sum:
        finite = s.f32(0, 255), s.f32(0, 255)
        return finite if s.below(12) else (few[s.below(len(few))], finite[1])
    return (few[s.below(len(few))] if s.bits(1) else s.f32(0, 255),)


def _chains(kind: Kind) -> Json:
    """Records: encoding before ‖ each factor as a word ‖ the term's position as a word ‖ encoding after."""
    s = inputs.Stream(f"chains of {kind.value[0]}")
    blob = bytearray()
    count = 0
    factors = 2 if kind.is_f32_sum else 1
    for _ in range(12):
        accumulator = initial(kind)
        for position in range(10):
            terms = _terms(kind, s)
            after = add_term(accumulator, terms, position)
            integer = kind.value[0].startswith("i64")
            words = b"".join(_word(inputs.raw(DType.I64 if integer else DType.F32, x)) for x in terms)
            blob += encode(accumulator) + words + _word(position) + encode(after)
            accumulator = after
            count += 1
    return {"length": len(encode(initial(kind))), "factors": factors, "count": count, "cases": hex_of(bytes(blob))}


def _finishes() -> Json:
    """Records: 97-byte encoding of a sum ‖ its f32 bits at precision 32 ‖ 31 ‖ … ‖ 16 (4 bytes each)."""
    s = inputs.Stream("finishes")
    sums: list[int] = [0, 1, -1]
    for precision in _ALL_PRECISIONS:
        digits = precision - 8
        ends = (0, 100, 148, 149, 150, 160, 171, 172, 173, 200, 297, 298, 400, 424, 425, 426)
        for exponent in ends if precision in (16, *range(24, 33)) else ends[2::4]:
            odds = (s.bits(digits) | 1 << (digits - 1) | 1, (1 << digits) - 1, 1 << (digits - 1))
            for odd in odds if precision in (24, 28, 32) else odds[:1]:
                tie = (odd * 2 + 1) << exponent
                sums += [tie, -tie, tie + 1, tie - 1]
    sums += [s.bits(64) << s.below(520) for _ in range(40)]
    blob = bytearray()
    for value in sums:
        accumulator = Accumulator(kind=Kind.F32_SUM, value=value)
        blob += encode(accumulator)
        blob += b"".join(
            finish(accumulator, Rounding(precision=b)).to_bytes(4, "big") for b in reversed(_ALL_PRECISIONS)
        )
    return {"count": len(sums), "cases": hex_of(bytes(blob))}


def _refused() -> list[list[str]]:
    """(kind, bytes) that are not the encoding of an accumulator."""
    found = []
    for kind in Kind:
        good = encode(initial(kind))
        found += [[kind.name, hex_of(b"")], [kind.name, hex_of(good[:-1])], [kind.name, hex_of(good + b"\0")]]
    for flag, rest in ((2, bytes(96)), (255, bytes(96)), (1, bytes(95) + b"\1"), (1, b"\x80" + bytes(95))):
        found.append([Kind.F32_SUM.name, hex_of(bytes([flag]) + rest)])
    for nan in ("7f800001", "ffc00000", "7fffffff"):
        found.append([Kind.F32_MAX.name, "0x" + nan])
        found.append([Kind.F32_ARGMAX.name, "0x" + nan + "00" * 8])
    return found


def sums() -> Json:
    """Accumulators: single terms, final roundings, refused encodings."""
    refused = _refused()
    return {
        "kinds": [kind.name for kind in Kind],
        **{kind.name: _chains(kind) for kind in Kind},
        "finish": _finishes(),
        "refusedKinds": [kind for kind, _ in refused],
        "refused": [data for _, data in refused],
    }


def instructions() -> Json:
    """Whole instructions."""
    return {"count": len(cases := [evaluate(case) for case in all_cases()]), "cases": cases}


def philox() -> Json:
    """Blocks (counter ‖ key ‖ block: 40 bytes), `random` (5 words and the bits), `shuffle` (6 words)."""
    s = inputs.Stream("philox")
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    blocks = [(0,) * 6, (0xFFFFFFFF,) * 6, pi, *(tuple(s.bits(32) for _ in range(6)) for _ in range(20))]
    blob, drawn, shuffled = bytearray(), bytearray(), bytearray()
    for a, b, c, d, k0, k1 in blocks:
        block = (a, b, c, d, k0, k1, *philox4x32((a, b, c, d), (k0, k1)))
        blob += b"".join(word.to_bytes(4, "big") for word in block)
    for _ in range(40):
        seed, step, stream, index = s.i64(), s.bits(40), s.bits(32), s.bits(40) >> s.below(40)
        drawn += b"".join(map(_word, (inputs.raw(DType.I64, seed), step, stream, index)))
        drawn += _word(random_bits(seed, step, stream, index))
    places = [*_places(s), *inputs.LONG_WALKS]
    for index, seed, epoch, n, stream in places:
        shuffled += b"".join(map(_word, (inputs.raw(DType.I64, index), inputs.raw(DType.I64, seed), epoch, n, stream)))
        shuffled += _word(inputs.raw(DType.I64, shuffle(index, seed, epoch, n, stream)))
    return {
        "blockCount": len(blocks),
        "blocks": hex_of(bytes(blob)),
        "randomCount": 40,
        "random": hex_of(bytes(drawn)),
        "shuffleCount": len(places),
        "shuffle": hex_of(bytes(shuffled)),
    }


def _places(s: inputs.Stream) -> Iterator[tuple[int, int, int, int, int]]:
    """(index, seed, epoch, n, stream): small n, any n, and powers of two with their neighbours; some index outside."""
    powers = [(1 << k) + d for k in (2, 3, 4, 8, 9, 16, 31, 32, 38, 39) for d in (-1, 0, 1)]
    for k, n in enumerate([*range(1, 21), *(1 + (s.bits(40) >> s.below(39)) for _ in range(40)), *powers, 1 << 40]):
        yield s.below(n + 1) - (k % 9 == 8), s.i64(), s.bits(36), n, s.bits(32)


def trees() -> Json:
    """Trees with all their proofs, padded roots, tensor ids, leaves, records."""
    s = inputs.Stream("trees")

    def digest() -> bytes:
        return b"".join(_word(s.bits(64)) for _ in range(4))

    def tree_of(count: int, depth: int) -> Json:
        leaves = [digest() for _ in range(count)]
        tree = Tree(leaves, depth)
        return {
            "depth": depth,
            "leaves": hex_of(b"".join(leaves)),
            "root": hex_of(tree.root),
            "proofs": [hex_of(b"".join(tree.proof(position))) for position in range(1 << depth)],
            "paddedBy3": hex_of(pad(tree.root, depth, depth + 3)),
        }

    sizes = ((1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (3, 5), (0, 2))
    encoded = [encode_instruction(case.instruction) for case in list(all_cases())[:6]]
    return {
        "empty": hex_of(EMPTY),
        "trees": [tree_of(count, depth) for count, depth in sizes],
        "tensors": _tensors(s),
        "entries": _entries(digest),
        "records": [_record(step, s, digest) for step in (0, 1, 1 << 40)],
        "instructions": [{"instruction": hex_of(x), "leaf": hex_of(instruction_digest(x))} for x in encoded],
    }


def _tensors(s: inputs.Stream) -> list[Json]:
    f32, i64, boolean = DType
    shapes: list[tuple[DType, tuple[int, ...]]] = [
        (f32, ()), (f32, (256,)), (f32, (257,)), (i64, (3, 43)), (boolean, (5, 1, 2)), (boolean, (2049,)),
        (f32, (1, 1, 1, 1, 1, 1, 1, 3)),
    ]  # fmt: skip
    found = []
    for dtype, shape in shapes:
        elements = [s.bits(1) if dtype == DType.BOOL else s.f32(0, 255) for _ in range(prod(shape))]
        data = b"".join(x.to_bytes(dtype.size, "little") for x in elements)
        place = {"dtype": int(dtype), "dims": list(shape), "data": hex_of(data)}
        roots = hex_of(commitments.tensor_tree(data).root), hex_of(commitments.identify(dtype, shape, data))
        found.append({**place, "chunkRoot": roots[0], "id": roots[1]})
    return found


def _entries(digest: Callable[[], bytes]) -> list[Json]:
    found = []
    for name in ("w", "layer.0.weight", "~" * 255):
        tensor = digest()
        leaves = hex_of(commitments.state_leaf(name, tensor)), hex_of(commitments.data_leaf(name, tensor))
        found.append({"name": name, "tensor": hex_of(tensor), "stateLeaf": leaves[0], "dataLeaf": leaves[1]})
    return found


def _record(step: int, s: inputs.Stream, digest: Callable[[], bytes]) -> Json:
    record = commitments.StepRecord(
        step=step,
        state_root=Digest(digest()),
        loss_bits=s.bits(32) if step else NAN_BITS,
        log_root=Digest(digest() if step > 1 else bytes(32)),
    )
    roots = {"stateRoot": hex_of(record.state_root), "lossBits": record.loss_bits, "logRoot": hex_of(record.log_root)}
    return {"step": step, **roots, "digest": hex_of(record.digest)}


FILES: Final[dict[str, Callable[[], Json]]] = {
    "scalars.json": scalars,
    "accumulators.json": sums,
    "instructions.json": instructions,
    "philox.json": philox,
    "trees.json": trees,
    "transcendentals.json": bulk,
    "rounding.json": roundings,
    "logs.json": logs,
    "late.json": late,
    "snapshots.json": snapshots,
    "receipts.json": receipts,
    "seats.json": seats,
    "posts.json": posted,
}
"""File name -> its generator."""


def render(content: Json) -> str:
    """The text of a file: one key or item a line, keys in the order of generation."""
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files; 1 if any differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors.generate", description="The shared test vectors.")
    parser.add_argument("directory", type=Path, help="where the files are, or shall be")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    different = []
    for name, make in FILES.items():
        path = options.directory / name
        text = render(make())
        if not options.check:
            path.write_text(text, encoding="ascii")
        elif not path.is_file() or path.read_text(encoding="ascii") != text:
            different.append(name)
    for name in different:
        print(f"{options.directory / name}: expected what the generator makes, got something else", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
