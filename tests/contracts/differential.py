"""Writes the cases of the differential test: `python -m tests.contracts.differential DIR`.

Random questions to the referee with the answers of Python's referee, for `contracts/test/Differential.t.sol`, which
asks the contract. The same every time. How many was chosen by mutants, each one rule of the reference left out or off
by one: of the calls of a kind, the first to show one comes within 300; of the scalars, which cost next to nothing,
within 4,000.

Two formats, numbers big-endian. *Scalars*, a file for each function of `map`: u32 count, then per case u8 function, u8
dtype of the result, u8 operands, 3 × u8 their dtypes, u8 precision, u8 0, 3 × u64 operands, u64 result. *Calls*: u32
count, then per case u8 1 if it is refused, u8 function of the contract (0 judge, 1 describe, 2 finish), u32 length,
the call with zeros for its selector, SHA-256 of what it returns (zeros if it is refused).
"""

import random
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.contracts.disputes import F32, KINDS, REFUSED, SUMS, Dispute, dispute_of, element, random_dispute
from tests.contracts.hostile import (
    CODES,
    any_finish,
    any_instruction,
    changed_often,
    description,
    edge_finish,
    finished,
    foreign,
    forged,
    misrounded,
)
from tests.contracts.roundings import any_rounding, edge_instruction
from tests.contracts.slotted import SOURCES, slotted
from tests.vectors.inputs import HARD, TRANSCENDENTAL_EDGES
from tiebreak.protocol.chain.abi import entries
from tiebreak.protocol.chain.calls import proof_argument
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.accumulator import Kind
from tiebreak.protocol.program.isa import MAP_SIGNATURES, TRANSCENDENTALS, DType, MapFunction
from tiebreak.protocol.program.reference import from_raw, scalar, to_raw

CALLS_OF_A_KIND: Final = 1000
SCALARS_OF_A_FUNCTION: Final = 5000
Call = tuple[int, bytes, bytes | None]
"""Function of the contract, call, and what it returns or None."""


def _float(rng: random.Random, function: MapFunction) -> int:
    if function in TRANSCENDENTALS and rng.randrange(4) == 0:
        return rng.choice((*HARD[function], *TRANSCENDENTAL_EDGES)) ^ rng.getrandbits(1) << 31
    if function in TRANSCENDENTALS and rng.randrange(3):
        return rng.getrandbits(1) << 31 | rng.randrange(90, 150) << 23 | rng.getrandbits(23)
    return rng.choice((element(rng, F32), rng.getrandbits(32)))  # a NaN may have any payload


def _partner(rng: random.Random, x: int) -> int:
    """A second operand that is hard for the first: cancelling, half a last place, next to under- or overflow, equal."""
    exponent, few = x >> 23 & 255, rng.getrandbits(12) << 11
    near = min(max((x & 0x7FFFFFFF) + rng.randrange(-2, 3), 0), 0x7F800000)
    others = (
        exponent - 24,
        exponent - 25,
        exponent - 1,
        127 - exponent,
        381 - exponent,
        104 - exponent,
        254 - exponent,
    )
    fraction = rng.choice((0, 0, 1, 0x7FFFFF, few, rng.getrandbits(23)))
    far = min(max(rng.choice(others) + rng.randrange(-1, 2), 0), 254) << 23 | fraction
    return rng.choice((near, far, far)) | rng.getrandbits(1) << 31


def _operands(rng: random.Random, function: MapFunction, types: tuple[DType, ...]) -> list[int]:
    found: list[int] = []
    for dtype in types:
        if dtype != F32:
            found.append(element(rng, dtype))
        elif found and types[0] == F32 and rng.randrange(3):
            found.append(_partner(rng, found[0]))
        else:
            x = _float(rng, function)
            found.append(x & ~0x7FF if rng.randrange(4) == 0 else x)  # few bits: exact results and ties
    return found


def scalars(function: MapFunction, count: int) -> Iterator[bytes]:
    """Cases of one function, over its types in turn."""
    rng = random.Random(f"differential/{function.name}")
    rows = MAP_SIGNATURES[function]
    for number in range(count):
        types, result = rows[number % len(rows)]
        precision = rng.randrange(MIN_PRECISION, MAX_PRECISION + 1)
        values = _operands(rng, function, types)
        # As when they are read from a tensor: a NaN of any payload is the one NaN.
        meant = [from_raw(dtype, to_raw(dtype, x)) for dtype, x in zip(types, values, strict=True)]
        right = to_raw(result, int(scalar(function, types, result, meant, precision)))
        padding = bytes(3 - len(types))
        words = b"".join(to_raw(dtype, x).to_bytes(8, "big") for dtype, x in zip(types, values, strict=True))
        head = bytes((function, result, len(types), *types)) + padding + bytes((precision, 0))
        yield head + words + bytes(8 * len(padding)) + right.to_bytes(8, "big")


def encoded(name: str, *arguments: Any) -> bytes:
    """A call of the referee, with zeros where its reader puts the selector."""
    return bytes(4) + entries("function")[name].calldata(arguments)[4:]


def _judged(dispute: Dispute) -> Call:
    found = dispute.off_chain()
    answer = None if found == REFUSED or isinstance(found, str) else found
    return 0, encoded("judge", dispute.context.values, proof_argument(dispute.move)), answer


def judged(kind: str, count: int) -> Iterator[Call]:
    """Honest proofs, proofs with one thing changed, operands that the program does not have, forged accumulators."""
    rng = random.Random(f"differential/{kind}")
    made = 0
    while made < count:
        if kind in KINDS:
            honest = random_dispute(rng, kind)
            others = [foreign(rng, kind), forged(rng, honest)] if kind != "iota" else []
            others += [misrounded(rng, honest)] if kind in SUMS else []
        else:
            honest = slotted(rng, kind if kind == "commit" else rng.choice(SOURCES))
            others = []
        others += changed_often(rng, honest, 1)
        for dispute in (honest, *(other for other in others if other is not honest)):
            yield _judged(dispute)
            made += 1


def logged(count: int) -> Iterator[Call]:
    """Elements of logged sums at and next to the ends of what the log decides; some to be rounded in no way."""
    rng = random.Random("differential/logged_sum")
    for _ in range(count):
        rounding = any_rounding(rng)
        dispute = dispute_of(*edge_instruction(rng, rounding), 0, rounding=rounding)
        yield _judged(misrounded(rng, dispute) if rng.randrange(12) == 0 else dispute)


def described(count: int) -> Iterator[Call]:
    rng = random.Random("differential/describe")
    for _ in range(count):
        instruction, root = any_instruction(rng), rng.randbytes(32)
        yield 1, encoded("describe", instruction, root), description(instruction, root)


def rounded(name: str, draw: Callable[[random.Random], tuple[Kind, int, bytes]], count: int) -> Iterator[Call]:
    rng = random.Random(f"differential/{name}")
    for _ in range(count):
        kind, rounding, held = draw(rng)
        if rng.randrange(10) == 0:
            yield 2, encoded("finish", rng.choice((0, 6, 8, 255)), rounding, held), None
        else:
            yield 2, encoded("finish", CODES[kind], rounding, held), finished(kind, rounding, held)


CALLS: Final[dict[str, Callable[[int], Iterator[Call]]]] = {
    **{kind: lambda count, kind=kind: judged(kind, count) for kind in (*KINDS, "source", "commit")},  # type: ignore[misc]
    "describe": described,
    "finish": lambda count: rounded("finish", any_finish, count),
    "logged_sum": logged,
    "logged_finish": lambda count: rounded("logged_finish", edge_finish, count),
}
"""File name -> its cases."""


def write_scalars(directory: Path, function: MapFunction, count: int) -> int:
    """The file of a function; how many cases it has."""
    found = list(scalars(function, count))
    (directory / f"map_{function.name.lower()}.bin").write_bytes(len(found).to_bytes(4, "big") + b"".join(found))
    return len(found)


def write_calls(directory: Path, name: str, count: int) -> int:
    """The file of a kind of instruction; how many cases it has."""
    parts = []
    for function, call, answer in CALLS[name](count):
        head = bytes((answer is None, function)) + len(call).to_bytes(4, "big")
        parts.append(head + call + (bytes(32) if answer is None else sha256(answer).digest()))
    (directory / f"{name}.bin").write_bytes(len(parts).to_bytes(4, "big") + b"".join(parts))
    return len(parts)


def main(arguments: list[str]) -> None:
    directory = Path(*arguments)
    directory.mkdir(parents=True, exist_ok=True)
    total = sum(write_scalars(directory, function, SCALARS_OF_A_FUNCTION) for function in MapFunction)
    total += sum(write_calls(directory, name, CALLS_OF_A_KIND) for name in CALLS)
    print(f"{total} cases of {len(MapFunction) + len(CALLS)} kinds in {directory}")


if __name__ == "__main__":
    main(sys.argv[1:])
