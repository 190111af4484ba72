"""`recheck` as a WebAssembly module under wasmtime: the corpus, the vectors, hostile bytes, bounds. See `make wasm`.

What its exports cannot express stays with the native program (test_recheck.py): accumulators, posts and snapshots.
"""

import gzip
import json
import os
import random
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import msgpack
import pytest
from eth_hash.auto import keccak

from tests.conftest import CaseCounter
from tests.golden.bundle import FOLDER, load
from tests.protocol.instructions import committed, counted, drawn, mapped, reduced, shuffled, source, whole
from tests.protocol.logged import plain
from tests.vectors import transcendentals
from tiebreak.api.corpus import programs
from tiebreak.engine.logged.encoding import decode_sparse
from tiebreak.protocol.commitments.keys import PrivateKey, recover
from tiebreak.protocol.program.isa import Access, DType, MapFunction, SourceKind
from tiebreak.protocol.program.program import Program, encode_instruction

wasmtime = pytest.importorskip("wasmtime")
from tests.protocol.wasm import DATA, LATE, STATE, WIDTHS, Recheck, Refused, open_module, steps  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "recheck" / "build" / "recheck.wasm"
ZIG = ROOT / ".venv-wasm" / "bin" / "python"
NEEDED = "TIEBREAK_NEED_WASM" in os.environ
pytestmark = pytest.mark.skipif(not (MODULE.exists() or NEEDED), reason="needs recheck.wasm, which make wasm builds")
F32, I64 = DType.F32, DType.I64
ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""Of secp256k1's group."""


HEXADECIMAL = re.compile("0x([0-9a-f]{2})*")


def _decoded(value: Any) -> Any:
    """JSON with bytes for its hexadecimal strings."""
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return bytes.fromhex(value[2:]) if isinstance(value, str) and HEXADECIMAL.fullmatch(value) else value


def vectors(name: str) -> Any:
    return _decoded(json.loads((ROOT / "tests" / "vectors" / f"{name}.json").read_text()))


def words(blob: bytes, width: int) -> list[bytes]:
    return [blob[at : at + width] for at in range(0, len(blob), width)]


def column(blob: bytes, record: int, at: int, dtype: int) -> bytes:
    """A tensor of the words at a place of each record."""
    return b"".join(case[at : at + 8][::-1][: WIDTHS[dtype]] for case in words(blob, record))


@pytest.fixture(scope="module")
def module() -> Any:
    return open_module(MODULE)


@pytest.fixture
def recheck(module: Any) -> Recheck:
    return Recheck(module)


def test_module_imports_its_refusal_alone_and_is_small(module: Any) -> None:
    assert [(one.module, one.name) for one in module.imports] == [("recheck", "refuse")]
    assert MODULE.stat().st_size < 128 << 10


def test_trees_tensors_and_records_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    all_ = vectors("trees")
    empty = recheck.digest("empty")
    assert empty == all_["empty"]
    for tree in all_["trees"]:
        leaves, depth = words(tree["leaves"], 32) or [empty], tree["depth"]
        root, least = recheck.put(recheck.tree(leaves)), (len(leaves) - 1).bit_length()
        assert recheck.digest("pad", root, least, depth) == tree["root"]
        assert recheck.digest("pad", root, least, depth + 3) == tree["paddedBy3"]
        for position, path in enumerate(tree["proofs"]):
            leaf = recheck.put([*leaves, *[empty] * 2**depth][position])
            assert recheck.digest("fold", leaf, position, recheck.put(path), depth) == tree["root"]
            cases()
    for tensor in all_["tensors"]:
        for piece in (8, 504, 1 << 20):
            assert recheck.tensor_id(tensor["dtype"], tensor["dims"], tensor["data"], piece) == tensor["id"]
    for entry in all_["entries"]:
        name, tensor = entry["name"].encode(), recheck.put(entry["tensor"])
        for kind, leaf in ((STATE, "stateLeaf"), (DATA, "dataLeaf")):
            assert recheck.digest("entry", kind, recheck.put(name), len(name), tensor) == entry[leaf]
    for made in all_["records"]:
        roots = [recheck.put(made[key]) for key in ("stateRoot", "logRoot")]
        assert recheck.digest("record", made["step"], roots[0], made["lossBits"], roots[1]) == made["digest"]
    for one in all_["instructions"]:
        assert recheck.hash("instruction_leaf", one["instruction"]) == one["leaf"]


def test_tensors_have_one_nan_and_bools_of_0_or_1(recheck: Recheck) -> None:
    one, other = (struct.pack("<3I", 1, nan, 2) for nan in (0x7FC00000, 0xFF812345))
    assert recheck.tensor_id(F32, [3], other) == recheck.tensor_id(F32, [3], one)
    assert recheck.tensor_id(I64, [1], other[4:]) != recheck.tensor_id(I64, [1], one[4:])
    for dtype, dims, data in ((2, [2], b"\1\2"), (0, [2], bytes(4)), (0, [1], bytes(8)), (0, [0], b""), (3, [], b"")):
        with pytest.raises(Refused, match="expected"):
            recheck.tensor_id(dtype, dims, data)


def test_sha256_and_keccak256_take_every_length(recheck: Recheck, cases: CaseCounter) -> None:
    for size in (*range(0, 280, 7), 55, 56, 64, 119, 120, 128, 135, 136, 137, 4096):
        data = random.Random(size).randbytes(size)
        stream = recheck.call("sha256_begin")
        for piece in words(data, 1 + size % 67):
            recheck.call("sha256_add", stream, recheck.put(piece), len(piece))
        assert recheck.digest("sha256_end", stream) == sha256(data).digest()
        assert recheck.hash("keccak256", data) == keccak(data)
        cases()


def signer(recheck: Recheck, domain: bytes, type_: str, fields: bytes, signature: bytes) -> tuple[bytes, bytes]:
    """What is signed of a structure, and who signed it."""
    with recheck.scratch():
        structure = recheck.hash("keccak256", type_.encode()) + fields
        digest = recheck.digest("to_sign", recheck.put(domain), recheck.put(structure), len(structure))
        return digest, recheck.get(recheck.call("signer", recheck.put(digest), recheck.put(signature)), 20)


def test_signatures_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    for one in vectors("receipts")["cases"]:
        domain = recheck.digest("domain", int(one["chainId"]), recheck.put(one["contract"]))
        fields = one["jobId"] + int(one["headCount"]).to_bytes(32, "big") + one["runRoot"]
        type_ = "Receipt(bytes32 jobId,uint64 count,bytes32 runRoot)"
        assert signer(recheck, domain, type_, fields, one["signature"]) == (one["digest"], one["client"])
        cases()
    posts = vectors("posts")
    domain = recheck.digest("domain", posts["chainId"], recheck.put(posts["contract"]))
    for post in posts["cases"]:
        encoding, signature = msgpack.unpackb(post["wire"])
        assert sha256(b"tb.post." + encoding).digest() == post["content"]
        assert signer(recheck, domain, "Post(bytes32 content)", post["content"], signature)[1] == post["sender"]
        fields = post["content"] + b"".join(int(post[key]).to_bytes(32, "big") for key in ("place", "at"))
        type_ = "Received(bytes32 content,uint64 place,uint64 at)"
        assert signer(recheck, domain, type_, fields, post["received"])[1] == posts["hub"]
        cases()


def test_signatures_of_the_module_are_recovered_by_python_and_by_itself(recheck: Recheck, cases: CaseCounter) -> None:
    draw = random.Random(64)
    for secret in (1, ORDER - 1, *(draw.randrange(1, ORDER) for _ in range(6))):
        digest, key = draw.randbytes(32), recheck.put(secret.to_bytes(32, "big"))
        place = recheck.put(digest)
        signature = recheck.get(recheck.call("sign", place, key), 65)
        own = recheck.get(recheck.call("address", key), 20)
        assert own == PrivateKey.from_int(secret).address == recover(digest, signature)
        assert recheck.get(recheck.call("signer", place, recheck.put(signature)), 20) == own
        cases()
    for secret in (0, ORDER, ORDER + 1):
        with pytest.raises(Refused, match="secret"):
            recheck.call("address", recheck.put(secret.to_bytes(32, "big")))


def test_logs_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    all_ = vectors("logs")
    program, roots = recheck.program(all_["program"]), []
    for step in all_["steps"]:
        log = recheck.put(struct.pack(">I", len(step["entries"]) // 9) + step["entries"])
        roots.append(recheck.digest("step_log", program, log, 4 + len(step["entries"])))
        assert roots[-1] == step["stepLog"]
        cases()
    assert recheck.tree(roots) == all_["logRoot"]


def run_late(recheck: Recheck, all_: Any, file: bytes, budget: int = 1 << 40) -> list[str]:
    """The lines of the run of late.json along a file of logs."""
    program = recheck.program(all_["program"])
    check_work(recheck, program)
    tolerances, logs = recheck.split(program, file)
    if len(logs) != len(all_["stepLogs"]):
        raise Refused(f"expected the logs of {len(all_['stepLogs'])} steps, got {len(logs)}")
    replay = recheck.call("replay", program, all_["precision"], tolerances)
    state, data = recheck.fill(replay, program, {STATE: all_["state"], DATA: all_["data"]})
    interval = all_["checkpointInterval"]
    made = list(steps(recheck, replay, len(logs), interval, logs, budget))
    root = recheck.tree([step.record for step in made if step.number % interval == 0 or step is made[-1]])
    roots = {"program": recheck.digest("program_root", program), "state": state, "data": data}
    lines = [
        f"step {s.number} loss {s.loss:08x} state {s.state.hex()} values {s.values.hex()} record {s.record.hex()}"
        for s in made
    ]
    return [*(f"{name} {found.hex()}" for name, found in roots.items()), *lines, f"run {root.hex()}"]


def test_late_data_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    all_ = vectors("late")
    for one in all_["programs"]:
        if one["root"] is None:
            with pytest.raises(Refused, match="expected"):
                recheck.program(one["program"])
        else:
            assert recheck.digest("program_root", recheck.program(one["program"])) == one["root"]
        cases()
    for budget in (1 << 62, 100, 1):
        assert run_late(recheck, all_, all_["logs"], budget) == all_["lines"]
    for one in all_["refused"]:
        with pytest.raises(Refused, match="expected"):
            run_late(recheck, all_, one["logs"])
        cases()
    for opening in all_["openings"]:
        leaf, path = recheck.put(opening["tensorId"]), opening["siblings"]
        root = recheck.digest("fold", leaf, opening["value"], recheck.put(path), len(path) // 32)
        assert root == all_["stepLogs"][opening["step"] - 1]
        cases()


def test_instructions_and_functions_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    for one in vectors("instructions")["cases"]:
        operands = list(zip(one["operandTypes"], one["operands"], strict=True))
        found = recheck.compute(one["instruction"], operands, len(one["result"]), step=3)
        assert found == one["result"], one["name"]
        cases()
    scalars = vectors("scalars")
    for name in scalars["names"]:
        group, types = scalars[name], scalars[name]["operandTypes"]
        shape, record = (group["count"],), 8 * len(types) + 8
        operands = [(dtype, column(group["cases"], record, 8 * k, dtype)) for k, dtype in enumerate(types)]
        reads = [whole(k, shape) for k in range(len(types))]
        encoded = encode_instruction(mapped(MapFunction(group["function"]), DType(group["resultType"]), shape, *reads))
        expected = column(group["cases"], record, record - 8, group["resultType"])
        found = recheck.compute(encoded, operands, len(expected), precision=group["precision"])
        assert found == expected, name
        cases(group["count"])


def test_random_numbers_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    philox = vectors("philox")
    for seed, step, stream, at, bits in struct.iter_unpack(">5Q", philox["random"]):
        if at < 1 << 16:
            given = [(I64, struct.pack("<Q", number)) for number in (seed, step)]
            made = drawn((at + 1,), Access(0, 0, (0,)), Access(1, 0, (0,)), stream=stream)
            found = recheck.compute(encode_instruction(made), given, 4 * at + 4)
            assert found[-4:] == struct.pack("<I", bits)
            cases()
    for index, seed, epoch, n, stream, result in struct.iter_unpack(">6Q", philox["shuffle"]):
        given = [(I64, struct.pack("<Q", number)) for number in (index, seed, epoch)]
        made = shuffled((), *(Access(k, 0, ()) for k in range(3)), n=n, stream=stream)
        assert recheck.compute(encode_instruction(made), given, 8) == struct.pack("<Q", result)
        cases()


def replayed(recheck: Recheck, name: str) -> tuple[int, int]:
    """A replay of a program of the corpus, with its inputs; and the program."""
    bundle = load(name)
    program = recheck.program(gzip.decompress((FOLDER / name / "program.gz").read_bytes()))
    replay = recheck.call("replay", program, bundle.expected.precision, bundle.expected.tolerances)
    recheck.fill(replay, program, {STATE: bundle.state(), DATA: bundle.data()})
    return replay, program


def reproduce(recheck: Recheck, name: str, count: int, budget: int = 1 << 40) -> None:
    """Replays a run of the corpus; the run root too if it is whole."""
    bundle, expected = load(name), load(name).expected
    logs = None
    if expected.tolerances:
        logs = [decode_sparse(log, bundle.program, step) for step, log in enumerate(bundle.logs(), 1)]
    replay, program = replayed(recheck, name)
    plain_logs = None if logs is None else recheck.split(program, plain(expected.tolerances, logs))[1]
    roots = [recheck.digest("inputs", replay, kind).hex() for kind in (STATE, DATA)]
    assert roots == [expected.initial_state_root, expected.data_root]
    assert recheck.digest("program_root", program).hex() == expected.program_root
    made = list(steps(recheck, replay, count, expected.checkpoint_interval, plain_logs, budget))
    found = {step.number: (step.state.hex(), step.loss) for step in made}
    assert all(found[step] == (root, loss) for step, root, loss in expected.records if step <= count)
    if count == expected.steps:
        ends = [s.record for s in made if s.number % expected.checkpoint_interval == 0 or s is made[-1]]
        assert recheck.tree(ends).hex() == expected.run_root


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.names())
def test_module_reproduces_the_corpus_roots(name: str, recheck: Recheck) -> None:
    reproduce(recheck, name, load(name).expected.steps)
    assert recheck.size < 64 << 20


@pytest.mark.parametrize(("name", "budget"), [("mlp", 1 << 40), ("mlp", 50_000), ("every", 97), ("late", 13)])
def test_pauses_change_no_root(name: str, budget: int, recheck: Recheck) -> None:
    reproduce(recheck, name, 25, budget)


def test_a_large_instruction_is_computed_in_pieces(recheck: Recheck) -> None:
    numbers, length = counted((1 << 16,), offset=0, strides=(1,)), 1 << 16
    cast = mapped(MapFunction.CAST, F32, (length,), whole(0, (length,)))
    body = (numbers, cast, reduced(F32, (), (length,), Access(1, 0, (1,))))
    program = recheck.program(Program(body, (committed("loss", F32, (), 2),)).encode())
    replay, pauses = recheck.call("replay", program, 32, 0), 0
    recheck.call("begin", replay, 1, 0, 0)
    work = recheck.call("work", program)
    assert work == 3 * length
    while not recheck.call("advance", replay, 1000):
        pauses += 1
        assert recheck.call("done", replay) <= 1000 * pauses
    assert pauses == 2 * length // 1000  # the sum is one element, which is never cut
    assert recheck.call("done", replay) == work
    total = length * (length - 1) // 2
    assert recheck.call("element", replay, 2, 0) == int.from_bytes(struct.pack(">f", total), "big")


def test_the_first_value_that_differs_is_found(recheck: Recheck) -> None:
    (one, program), (other, _) = replayed(recheck, "mlp"), replayed(recheck, "mlp")
    slot, changed = 1, recheck.call("slot", program, STATE, 1)
    address = recheck.call("tensor", other, STATE, slot)
    recheck.put(bytes([recheck.get(address, 1)[0] ^ 1]), address)
    body, name = recheck.call("count", program, 0), recheck.describe(program, changed).name
    ids = []
    for replay in (one, other):
        recheck.call("begin", replay, 1, 0, 0)
        assert recheck.call("advance", replay, 1 << 40) == 1
        ids.append(words(recheck.get(recheck.call("ids", replay), 32 * body), 32))
    first = next(k for k in range(body) if ids[0][k] != ids[1][k])
    found = recheck.describe(program, first)
    assert (found.opcode, found.function, found.name) == (1, SourceKind.STATE, name)
    bits = [recheck.call("element", replay, first, 0) for replay in (one, other)]
    assert bits[0] ^ bits[1] == 1
    assert recheck.call("element", one, first, 1) == recheck.call("element", other, first, 1)


def test_calls_in_another_order_are_refused(recheck: Recheck) -> None:
    replay, program = replayed(recheck, "mlp")
    refused: list[tuple[Any, ...]] = [
        ("advance", replay, 1), ("loss", replay), ("state", replay), ("end", replay), ("element", replay, 0, 0),
        ("begin", replay, 0, 0, 0), ("tensor", replay, STATE, 99), ("tensor", replay, LATE, 0),
        ("tensor", replay, 7, 0), ("inputs", replay, LATE), ("slot", program, DATA, 99), ("slot", program, 0, 0),
        ("describe", program, 1 << 20), ("replay", program, 15, 0), ("replay", program, 33, 0),
        ("replay", program, 32, 1), ("replay", program, 32, 1 << 24), ("limit", 1 << 32), ("release", 0),
        ("release", 1 << 31), ("pad", program, 0, 65),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises(Refused, match="expected"):
            recheck.call(*call)
    recheck.call("begin", replay, 1, 0, 0)
    recheck.call("advance", replay, 1)
    for name in ("loss", "state", "values", "end"):
        with pytest.raises(Refused, match="complete"):
            recheck.call(name, replay)
    with pytest.raises(Refused, match="order"):
        recheck.call("begin", replay, 2, 0, 0)
    with pytest.raises(Refused, match="expected"):  # policy logged, without a log
        recheck.call("begin", recheck.call("replay", program, 32, 2), 1, 0, 0)


def test_memory_is_bounded_as_the_host_says(module: Any) -> None:
    limit, huge = 4 << 20, 10**12
    recheck = Recheck(module, limit)
    named, loss = source(SourceKind.STATE, "w", F32, huge), reduced(F32, (), (1,), Access(0, 0, (0,)))
    large = counted((huge,), offset=0, strides=(1,)), mapped(MapFunction.CAST, F32, (huge,), whole(0, (huge,)))
    wholes = Program((named, loss), (committed("w", F32, (huge,), 0),))
    values = Program((*large, reduced(F32, (), (1,), Access(1, 0, (0,)))), (committed("l", F32, (), 2),))
    with pytest.raises(Refused, match="fits into 4194304 bytes"):
        recheck.call("replay", recheck.program(wholes.encode()), 32, 0)
    replay = recheck.call("replay", recheck.program(values.encode()), 32, 0)
    recheck.call("begin", replay, 1, 0, 0)
    with pytest.raises(Refused, match="fits into 4194304 bytes"):
        recheck.call("advance", replay, 1)
    mark = recheck.call("mark")
    with suppress(Refused):
        while True:
            recheck.call("allocate", 4096)
    assert 3 << 20 < recheck.size <= limit
    for size in (limit, 1 << 32, (1 << 64) - 1):
        with pytest.raises(Refused, match="fits into 4194304 bytes"):
            recheck.call("allocate", size - (1 << 64) if size >> 63 else size)
    recheck.call("release", mark)
    recheck.put(bytes([255]) * 4096)
    recheck.call("release", mark)
    assert recheck.get(recheck.call("allocate", 4096), 4096) == bytes(4096), "expected zeros where others have been"
    assert run_late(recheck, vectors("late"), vectors("late")["logs"]) == vectors("late")["lines"]


def test_refusals_leave_the_stack_and_the_memory_as_they_were(recheck: Recheck) -> None:
    program = load("mlp").program.encode()
    for end in range(1, 600):
        with recheck.scratch(), pytest.raises(Refused):
            recheck.program(program[: -end % len(program)])
    assert recheck.size <= 8 << 20
    reproduce(recheck, "mlp", 1)


MOST_WORK = 1 << 16


def check_work(recheck: Recheck, program: int) -> None:
    """What a host does before it replays a program of somebody else."""
    if recheck.call("work", program) >= MOST_WORK:
        raise Refused("expected less work")


def mutated(draw: random.Random, data: bytes) -> bytes:
    """One or two changes: a byte, a wide number of note, a piece moved, an end cut off."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 3)):
        at, other = (draw.randrange(min(len(found), draw.choice((512, 1 << 20)))) for _ in range(2))
        number = (draw.choice((0, 1, -1, 1 << 63, 1 << 40, 513)) + draw.randrange(-1, 2)) % (1 << 64)
        changes = (bytes([draw.randrange(256)]), number.to_bytes(8, "big"), found[other : other + 8])
        change = draw.choice(changes)[: len(found) - at]
        found[at : at + len(change)] = change
    return bytes(found) if draw.randrange(20) else bytes(found[: draw.randrange(len(found))])


def hostile_program(recheck: Recheck, draw: random.Random) -> None:
    bundle = load("mlp")
    program = recheck.program(mutated(draw, bundle.program.encode()))
    recheck.call("program_root", program)
    replay = recheck.call("replay", program, 32, 0)
    check_work(recheck, program)
    with suppress(Refused):  # of tensors of other shapes: then all are zeros
        recheck.fill(replay, program, {STATE: bundle.state(), DATA: bundle.data()})
    list(steps(recheck, replay, 2, 2))


def hostile_logs(recheck: Recheck, draw: random.Random) -> None:
    all_ = vectors("late")
    run_late(recheck, all_, mutated(draw, all_["logs"]))


def hostile_late_program(recheck: Recheck, draw: random.Random) -> None:
    all_ = vectors("late")
    run_late(recheck, all_ | {"program": mutated(draw, all_["program"])}, all_["logs"])


def hostile_instruction(recheck: Recheck, draw: random.Random) -> None:
    one = draw.choice(vectors("instructions")["cases"])
    data = [mutated(draw, operand) if draw.randrange(2) else operand for operand in one["operands"]]
    encoded = mutated(draw, one["instruction"]) if draw.randrange(2) else one["instruction"]
    dims = words(encoded[6 : 6 + 8 * sum(encoded[3:5])], 8)
    if prod(int.from_bytes(dim, "big") for dim in dims) >= MOST_WORK:
        raise Refused("expected less work")
    recheck.compute(encoded, list(zip(one["operandTypes"], data, strict=True)), 0)


def hostile_signature(recheck: Recheck, draw: random.Random) -> None:
    one = draw.choice(vectors("receipts")["cases"])
    signature = mutated(draw, one["signature"]).ljust(65, b"\0")
    recheck.call("signer", recheck.put(one["digest"]), recheck.put(signature))


HOSTILE = {
    "programs": hostile_program,
    "logs": hostile_logs,
    "programs with late data": hostile_late_program,
    "instructions": hostile_instruction,
    "signatures": hostile_signature,
}


@pytest.mark.parametrize("count", [80, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_or_taken(name: str, count: int, module: Any) -> None:
    """No other trap, no more memory than the limit, and the instance computes afterwards as before."""
    draw, limit, taken = random.Random(name), 16 << 20, 0
    recheck = Recheck(module, limit)
    for _ in range(count):
        with suppress(Refused), recheck.scratch():
            HOSTILE[name](recheck, draw)
            taken += 1
    assert 0 < taken < count
    assert recheck.size <= limit
    assert run_late(recheck, vectors("late"), vectors("late")["logs"]) == vectors("late")["lines"]


@pytest.mark.slow
def test_transcendentals_are_those_of_the_vectors(recheck: Recheck, cases: CaseCounter) -> None:
    bulk, hardest = vectors("transcendentals"), vectors("hardest")
    for name in bulk["names"]:
        group, function = bulk[name], MapFunction(bulk[name]["function"])
        near = struct.unpack(f">{len(group['anchors']) // 4}I", group["anchors"])
        drawn = [transcendentals.argument(function, case, near) for case in range(bulk["cases"])]
        hard = list(struct.iter_unpack(">IBI32xh", hardest[name]["cases"]))
        arguments = drawn + [(x, precision) for x, precision, *_ in hard]
        results = bytearray(4 * len(arguments))
        for precision in range(16, 33):
            places = [k for k, (_, at) in enumerate(arguments) if at == precision]
            data = b"".join(struct.pack("<I", arguments[k][0]) for k in places)
            shape = (len(places),)
            encoded = encode_instruction(mapped(function, F32, shape, whole(0, shape)))
            made = recheck.compute(encoded, [(F32, data)], len(data), precision=precision)
            for k, word in zip(places, words(made, 4), strict=True):
                results[4 * k : 4 * k + 4] = word[::-1]
        runs = words(bytes(results[: 4 * bulk["cases"]]), 4 * bulk["run"])
        assert b"".join(sha256(run).digest()[:4] for run in runs) == group["digests"], name
        assert words(bytes(results[4 * bulk["cases"] :]), 4) == [struct.pack(">I", case[2]) for case in hard]
        cases(len(arguments))


@pytest.mark.slow
@pytest.mark.skipif(not (ZIG.exists() or NEEDED), reason="needs recheck.wasm, which make wasm builds")
def test_another_build_has_the_same_bytes(tmp_path: Path) -> None:
    """In another folder, with another umask, time zone and language, and with a compiler that has cached nothing."""
    folder = tmp_path / "another folder"
    shutil.copytree(ROOT / "recheck", folder, ignore=shutil.ignore_patterns("build"))
    caches = {name: str(tmp_path / name) for name in ("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR")}
    environment = os.environ | caches | {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    command = ["make", "-s", "wasm", f"ZIG={ZIG} -m ziglang"]
    subprocess.run(command, cwd=folder, env=environment, umask=0o077, check=True)
    assert (folder / "build" / "recheck.wasm").read_bytes() == MODULE.read_bytes()
