"""Holds the test vectors against the integer reference; formats: tests/vectors/README.md.

A check yields, for each case of a file, its name, what the file says and what the reference says.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final

from conformance.plain_logs import entries_of, read_logs
from conformance.run import ReferenceRun, lines
from tiebreak.protocol.codec import Reader
from tiebreak.protocol.commitments import records
from tiebreak.protocol.commitments.log_tree import LogTree, code_in, depth_of_value, logs_tree, word_leaf
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.numbers.float32 import SIGN, round_f32
from tiebreak.protocol.numbers.philox import philox4x32, random_bits, shuffle
from tiebreak.protocol.program import accumulator
from tiebreak.protocol.program.accumulator import Kind, add_term, finish
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.program import Program, decode_instruction, instruction_digest
from tiebreak.protocol.program.reference import (
    TRANSCENDENTAL_FUNCTIONS,
    accumulators,
    element,
    from_raw,
    pack,
    scalar,
    to_raw,
    unpack,
)
from tiebreak.protocol.program.rounding import Direction, Rounding, StepLog
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree, fold, pad

Json = dict[str, Any]
Cases = Iterator[tuple[str, Any, Any]]
Check = Callable[[Json], Cases]
_STEP: Final = 3
"""The step in which `instructions.json` runs."""


def unhex(text: str) -> bytes:
    """The bytes of hexadecimal digits after 0x."""
    if text[:2] != "0x":
        raise EncodingError(f"expected 0x and hexadecimal digits, got {text[:20]!r}")
    return bytes.fromhex(text[2:])


def fields(group: Json, key: str = "cases") -> Reader:
    """A blob, to be read record by record."""
    return Reader(unhex(group[key]))


def scalars(found: Json) -> Cases:
    for name in found["names"]:
        group, cases = found[name], fields(found[name])
        types = [DType(code) for code in unhex(group["operandTypes"])]
        function, result = MapFunction(group["function"]), DType(group["resultType"])
        for number in range(group["count"]):
            values = [from_raw(dtype, cases.unsigned(8)) for dtype in types]
            computed = scalar(function, types, result, values, group["precision"])
            yield f"{name}[{number}]", cases.unsigned(8), to_raw(result, computed)
        cases.finish()


def _argument(group: Json, anchors: bytes, case: int) -> tuple[int, int]:
    """Pattern and precision of a case: the rule of transcendentals.json."""
    h = sha256(bytes([group["function"]]) + case.to_bytes(4, "big")).digest()
    word, precision, shape = int.from_bytes(h[:4], "big"), 16 + h[5] % 17, h[4] % 8
    if shape == 0:
        return word, precision
    if group["function"] == MapFunction.LOG:
        word &= ~SIGN
    if shape < 5:
        low, span = group["exponents"]
        return word & 0x807FFFFF | low + h[6] % span << 23, precision
    place = int.from_bytes(h[6:8], "big") % (len(anchors) // 4) * 4
    anchor = int.from_bytes(anchors[place : place + 4], "big") + (h[8] % 17 - 8 if shape > 5 else 0)
    return word & SIGN | anchor % SIGN, precision


def transcendentals(found: Json) -> Cases:
    for name in found["names"]:
        group = found[name]
        function, anchors = TRANSCENDENTAL_FUNCTIONS[MapFunction(group["function"])], unhex(group["anchors"])
        digests = fields(group, "digests")
        for first in range(0, found["cases"], found["run"]):
            results = (function(*_argument(group, anchors, first + k)) for k in range(found["run"]))
            digest = sha256(b"".join(result.to_bytes(4, "big") for result in results)).digest()
            yield f"{name}[{first}...]", digests.take(4), digest[:4]
        digests.finish()


def hardest(found: Json) -> Cases:
    for name in found["names"]:
        group, cases = found[name], fields(found[name])
        function = TRANSCENDENTAL_FUNCTIONS[MapFunction(group["function"])]
        for _ in range(group["count"]):
            x, precision, result = cases.unsigned(4), cases.unsigned(1), cases.unsigned(4)
            v, e = cases.unsigned(32), cases.signed(2)
            yield f"{name} of {x:08x}", result, function(x, precision)
            ends = {round_f32(v, e, precision=precision), round_f32(v + 1, e, precision=precision)}
            yield f"{name} of {x:08x}, its enclosure", {result & ~SIGN}, ends
        cases.finish()


def _refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except VerificationError:
        return True
    return False


def sums(found: Json) -> Cases:
    for name in found["kinds"]:
        kind, group, cases = Kind[name], found[name], fields(found[name])
        dtype = DType.I64 if name.startswith("I64") else DType.F32
        for number in range(group["count"]):
            held = accumulator.decode(kind, cases.take(group["length"]))
            terms = [from_raw(dtype, cases.unsigned(8)) for _ in range(group["factors"])]
            after = accumulator.encode(add_term(held, terms, cases.unsigned(8)))
            yield f"{name}[{number}]", cases.take(group["length"]), after
        cases.finish()
    cases = fields(found["finish"])
    for number in range(found["finish"]["count"]):
        held = accumulator.decode(Kind.F32_SUM, cases.take(97))
        for precision in range(32, 15, -1):
            computed = finish(held, Rounding(precision=precision))
            yield f"finish[{number}] at {precision} bits", cases.unsigned(4), computed
    cases.finish()
    for number, (name, text) in enumerate(zip(found["refusedKinds"], found["refused"], strict=True)):
        yield f"refused[{number}]", True, _refuses(lambda: accumulator.decode(Kind[name], unhex(text)))  # noqa: B023


def roundings(found: Json) -> Cases:
    cases = fields(found)
    for number in range(found["count"]):
        held = accumulator.decode(Kind.F32_SUM, cases.take(97))
        _, code, tolerance, precision = cases.take(4)
        direction = Direction(code) if code <= Direction.UP else Direction.NONE
        rounding = Rounding(precision=precision, tolerance=tolerance, direction=direction)
        yield f"[{number}]", cases.unsigned(4), finish(held, rounding)
    cases.finish()


def instructions(found: Json) -> Cases:
    for case in found["cases"]:
        name, i = case["name"], decode_instruction(unhex(case["instruction"]))
        types = [DType(code) for code in unhex(case["operandTypes"])]
        operands = [unpack(dtype, unhex(text)) for dtype, text in zip(types, case["operands"], strict=True)]

        def read(operand: int, where: int, operands: list[list[int]] = operands) -> int:
            if where < 0:
                raise IndexError(where)
            return operands[operand][where]

        result = pack(i.dtype, [element(i, k, read, types, step=_STEP) for k in range(i.numel)])
        yield name, unhex(case["result"]), result
        leaves = accumulators(i, i.numel - 1, read, types) if i.is_reduction else []
        yield f"{name}, accumulators", list(map(unhex, case["accumulators"])), list(map(accumulator.encode, leaves))


def philox(found: Json) -> Cases:
    cases = fields(found, "blocks")
    for number in range(found["blockCount"]):
        a, b, c, d, k0, k1 = (cases.unsigned(4) for _ in range(6))
        yield f"blocks[{number}]", tuple(cases.unsigned(4) for _ in range(4)), philox4x32((a, b, c, d), (k0, k1))
    cases.finish()
    cases = fields(found, "random")
    for number in range(found["randomCount"]):
        seed, step, stream, index = cases.signed(8), *(cases.unsigned(8) for _ in range(3))
        yield f"random[{number}]", cases.unsigned(8), random_bits(seed, step, stream, index)
    cases.finish()
    cases = fields(found, "shuffle")
    for number in range(found["shuffleCount"]):
        index, seed, epoch, n, stream = cases.signed(8), cases.signed(8), *(cases.unsigned(8) for _ in range(3))
        yield f"shuffle[{number}]", cases.signed(8), shuffle(index, seed, epoch, n, stream)
    cases.finish()


def _digests(text: str) -> list[Digest]:
    data = unhex(text)
    return [Digest(data[at : at + 32]) for at in range(0, len(data), 32)]


def trees(found: Json) -> Cases:
    yield "empty", unhex(found["empty"]), EMPTY
    for number, case in enumerate(found["trees"]):
        name, depth, leaves = f"trees[{number}]", case["depth"], _digests(case["leaves"])
        tree = Tree(leaves, depth)
        yield f"{name} root", unhex(case["root"]), tree.root
        yield f"{name} paddedBy3", unhex(case["paddedBy3"]), pad(tree.root, depth, depth + 3)
        for position, text in enumerate(case["proofs"]):
            yield f"{name} proof {position}", _digests(text), tree.proof(position)
            leaf = leaves[position] if position < len(leaves) else EMPTY
            yield f"{name} fold {position}", unhex(case["root"]), fold(leaf, position, _digests(text))
    for number, case in enumerate(found["tensors"]):
        dtype, data = DType(case["dtype"]), unhex(case["data"])
        yield f"tensors[{number}] chunkRoot", unhex(case["chunkRoot"]), records.tensor_tree(data).root
        yield f"tensors[{number}] id", unhex(case["id"]), records.identify(dtype, case["dims"], data)
    for case in found["entries"]:
        name, tensor = case["name"], unhex(case["tensor"])
        yield f"entry {name} of state", unhex(case["stateLeaf"]), records.state_leaf(name, tensor)
        yield f"entry {name} of data", unhex(case["dataLeaf"]), records.data_leaf(name, tensor)
    for case in found["records"]:
        state_root, log_root = Digest(unhex(case["stateRoot"])), Digest(unhex(case["logRoot"]))
        made = records.StepRecord(
            step=case["step"], state_root=state_root, loss_bits=case["lossBits"], log_root=log_root
        )
        yield f"record {case['step']}", unhex(case["digest"]), made.digest
    for case in found["instructions"]:
        yield case["leaf"], unhex(case["leaf"]), instruction_digest(unhex(case["instruction"]))


def logs(found: Json) -> Cases:
    program, step_logs = Program.decode(unhex(found["program"])), []
    yield "depth", found["depth"], program.half_depth
    for number, step in enumerate(found["steps"], 1):
        log = StepLog(entries_of(fields(step, "entries")))
        log.check(program, number)
        tree = LogTree(program, log)
        step_logs.append(tree.root)
        yield f"step {number}", unhex(step["stepLog"]), tree.root
        for opening in step["openings"]:
            value, chunk = opening["value"], opening["chunk"]
            name, word = f"step {number}, value {value}, chunk {chunk}", tree.word(value, chunk)
            yield f"{name}, word", unhex(opening["word"]), word
            yield f"{name}, leaf", unhex(opening["leaf"]), word_leaf(word)
            yield f"{name}, position", opening["position"], value << depth_of_value(program, value) | chunk
            yield f"{name}, siblings", _digests(opening["siblings"]), tree.proof(value, chunk)
    over = logs_tree(step_logs)
    yield "logRoot", unhex(found["logRoot"]), over.root
    for place, text in enumerate(found["logProofs"]):
        yield f"logProofs[{place}]", _digests(text), over.proof(place)
    word, codes = unhex(found["word"]), unhex(found["codes"])
    yield "codes", list(codes), [code_in(word, place) for place in range(len(codes))]


def _root_or_none(encoded: bytes) -> str | None:
    try:
        return f"0x{Program.decode(encoded).root.hex()}"
    except VerificationError:
        return None


def _winner(proof: Json, depth: int) -> str | None:
    """The winner by the proof of a source of late data in this snapshot (SPEC section 10.1); None if it is illegal."""
    snapshot, found, siblings = unhex(proof["snapshot"]), unhex(proof["tensorId"]), _digests(proof["siblings"])
    leaf, node, step_log = int.from_bytes(snapshot[40:44], "big"), snapshot[48:80], snapshot[112:144]
    if len(siblings) != depth or fold(found, leaf, siblings) != step_log:
        return None
    return "defender" if found == node else "challenger"


def late(found: Json) -> Cases:
    for case in found["programs"]:
        yield case["name"], case["root"], _root_or_none(unhex(case["program"]))
    program, steps = Program.decode(unhex(found["program"])), len(found["stepLogs"])
    tolerances, logs = read_logs(unhex(found["logs"]), program, steps)
    state, data = ({name: unhex(text) for name, text in found[key].items()} for key in ("state", "data"))
    run = ReferenceRun(
        program=program, state=state, data=data, precision=found["precision"], tolerances=tolerances, logs=logs
    )
    printed = list(lines(run, steps, found["checkpointInterval"]))
    for number, (expected, line) in enumerate(zip(found["lines"], printed, strict=True)):
        yield f"line {number}", expected, line
    yield "run root", found["runRoot"], printed[-1].replace("run ", "0x")
    trees = [LogTree(program, log) for log in logs]
    for number, (text, tree) in enumerate(zip(found["stepLogs"], trees, strict=True), 1):
        yield f"step log {number}", unhex(text), tree.root
    for opening in found["openings"]:
        tree, value = trees[opening["step"] - 1], opening["value"]
        yield f"step {opening['step']}, value {value}, id", unhex(opening["tensorId"]), tree.late[value]
        yield f"step {opening['step']}, value {value}, siblings", _digests(opening["siblings"]), tree.above(value)
    for case in found["refused"]:
        yield case["name"], True, _refuses(lambda: read_logs(unhex(case["logs"]), program, steps))  # noqa: B023
    for proof in found["game"]["proofs"]:
        yield proof["name"], proof["winner"], _winner(proof, program.half_depth)


CHECKS: Final[dict[str, Check]] = {
    "scalars": scalars,
    "transcendentals": transcendentals,
    "hardest": hardest,
    "accumulators": sums,
    "rounding": roundings,
    "instructions": instructions,
    "philox": philox,
    "trees": trees,
    "logs": logs,
    "late": late,
}
"""The files that need no library but NumPy."""
