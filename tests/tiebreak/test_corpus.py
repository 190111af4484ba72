"""The corpus: what its programs cover, runs of it, the first difference of a wrong one, and statements of strangers."""

import getpass
import gzip
import json
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import CaseCounter
from tests.golden import make
from tests.parts import slow_except
from tests.source_tree import ROOT
from tests.tiebreak.test_cli import HEAVY, running
from tiebreak.api.corpus import corpus_runs, programs
from tiebreak.api.corpus.corpus_runs import INTEGERS, TORCH, BackendChoice, C, choices, compute
from tiebreak.api.corpus.programs import CORPUS, ComputedRun, ExpectedRun
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.c.chains import CompiledChain
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.run.interpreter import Interpreter, OneByOne, Planned, State
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import payload_of, sign
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.reference import element

LIMIT = 3_000_000
"""Bytes of all programs together at most: they are in every clone and every wheel."""
SEALED = ROOT / "corpus" / "sealed"
KEY = PrivateKey.from_int(77)
NAMES = programs.names(CORPUS)


# ---------------------------------------------------------------- the programs


@cache
def bodies() -> list[Any]:
    return [(p, i) for p in map(programs.read, NAMES) for i in (*p.program.body, *p.program.commits)]


def test_corpus_has_complete_and_small_programs(tmp_path: Path, cases: CaseCounter) -> None:
    assert len(NAMES) == 21
    assert sum(file.stat().st_size for name in NAMES for file in (CORPUS / name).iterdir()) < LIMIT
    for name in NAMES:
        found = read_whole(name, CORPUS, tmp_path)
        expected = found.expected
        interval = expected.checkpoint_interval
        assert [step for step, _, _ in expected.records] == [1, *range(interval, expected.steps + 1, interval)]
        assert len(expected.records) > 3, "some checkpoints are between the first step and the last"
        assert len(found.logs()) == (expected.steps if expected.tolerances else 0)
        assert make.encode(expected) == (CORPUS / name / "expected.json").read_bytes()
        cases()


def test_corpus_covers_every_instruction_function_and_type(cases: CaseCounter) -> None:
    """Each signature of each function, as the registry of instructions has them."""
    found = {
        (i.opcode, i.function, p.program.operand_dtypes(i) if i.operands else (), i.dtype)
        for p, i in bodies()
        if i.opcode != Opcode.COMMIT
    }
    functions = {
        Opcode.MAP: isa.MapFunction, Opcode.REDUCE: isa.ReduceFunction, Opcode.SCATTER_SUM: isa.ScatterFunction,
        Opcode.WINDOW: isa.WindowFunction, Opcode.SOURCE: isa.SourceKind,
    }  # fmt: skip
    _, any_instruction = bodies()[0]
    for opcode in Opcode:
        for function in functions.get(opcode, (0,)):
            if opcode in (Opcode.SOURCE, Opcode.COMMIT):
                continue
            accepted = isa.signatures(replace(any_instruction, opcode=opcode, function=int(function)))
            assert accepted
            for operands, dtype in accepted:
                assert (opcode, function, operands, dtype) in found, (opcode.name, function, operands, dtype)
                cases()
    assert {function for opcode, function, _, _ in found if opcode == Opcode.SOURCE} == set(isa.SourceKind)
    assert {i.dtype for _, i in bodies() if i.opcode == Opcode.COMMIT} == set(isa.DType)
    assert len(isa.MAP_SIGNATURES) == len(isa.MapFunction)


def test_corpus_covers_precisions_policies_and_frozen_entries() -> None:
    expected = [programs.read(name).expected for name in NAMES]
    assert {(e.precision, bool(e.tolerances)) for e in expected} == {
        (32, False), (24, False), (16, False), (32, True), (16, True),
    }  # fmt: skip
    assert programs.read("lora").program.frozen
    assert not programs.read("mlp").program.frozen


def expected_of(name: str, **changes: Any) -> bytes:
    document = json.loads((CORPUS / name / "expected.json").read_bytes()) | changes
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "changes",
    [{"steps": 0}, {"steps": True}, {"precision": 15}, {"precision": 33}, {"tolerances": -1}, {"run_root": "00"},
     {"records": [[1, "0", "1"]]}, {"records": {}}, {"torch": "\x1b[2J"}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_malformed_expected_results_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(EncodingError, match="expected"):
        ExpectedRun.decode("expected.json", expected_of("mlp", **changes))


def read_whole(name: str, corpus: Path, scratch: Path) -> programs.CorpusProgram:
    """A program of which a run is made, as before computing it. Raises `VerificationError`."""
    found = programs.read(name, corpus)
    corpus_runs.run_of(found, scratch / f"{name}-{len(list(scratch.iterdir()))}")
    found.logs()
    return found


def copied(name: str, tmp_path: Path) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for file in (CORPUS / name).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("file", ["program.gz", "state.safetensors", "data.safetensors", "logs.gz"])
def test_a_damaged_corpus_file_is_refused(file: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    scratch = tmp_path_factory.mktemp("runs")
    folder = copied("logged", tmp_path)
    data = (folder / file).read_bytes()
    for damaged in (data[:-7], data + b"x", data + data, b"", data[:20] + bytes([data[20] ^ 255]) + data[21:]):
        (folder / file).write_bytes(damaged)
        with pytest.raises(VerificationError):
            read_whole("logged", tmp_path, scratch)


def test_a_compressed_file_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, size = copied("mlp", tmp_path), 1 << 20
    monkeypatch.setattr(programs, "MAX_FILE_BYTES", size)
    for large in (gzip.compress(bytes(size + 1)), gzip.compress(bytes(size << 6))):
        (folder / "program.gz").write_bytes(large)
        with pytest.raises(EncodingError, match=f"one whole file of at most {size} bytes, got more or less"):
            programs.read("mlp", tmp_path)


def test_a_program_with_another_digest_is_refused(tmp_path: Path) -> None:
    folder = copied("mlp", tmp_path)
    (folder / "program.gz").write_bytes((CORPUS / "mixed" / "program.gz").read_bytes())
    with pytest.raises(EncodingError, match="expected program 63a202db"):
        programs.read("mlp", tmp_path)


def test_unknown_program_names_are_refused(tmp_path: Path) -> None:
    for name in ("nothing", "../corpus/mlp", "sealed", ""):
        with pytest.raises(ConfigurationError, match="expected one of the programs"):
            programs.read(name)
    with pytest.raises(ConfigurationError, match="expected the folders of programs"):
        programs.names(tmp_path)


# ---------------------------------------------------------------- running them


def by_c() -> BackendChoice:
    if not any(choice.backend == C for choice in choices(["cpu"])):
        pytest.skip("needs a C compiler")
    return BackendChoice(backend=C)


@pytest.mark.parametrize("name", slow_except(["every", "late", "signatures", "narrow", "lora"], "every"))
def test_the_integer_reference_reaches_the_roots(name: str) -> None:
    assert compute(programs.read(name), BackendChoice(backend=INTEGERS)).equal


@pytest.mark.slow
def test_every_back_end_reaches_every_root(cases: CaseCounter) -> None:
    """The whole corpus, as `tiebreak corpus run` computes it: about a minute on two cores."""
    for choice in choices(["cpu"]):
        for name in NAMES:
            found = compute(programs.read(name), choice)
            assert found.equal, str(found)
            cases()


def flipped(tensor: Tensor, at: int) -> Tensor:
    tensor.view(torch.int32).view(-1)[at] ^= 1
    return tensor


def wrong_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for sums in C that has one bit wrong in results of 20 elements or more."""
    right = CBackend._prepared
    monkeypatch.setattr(Interpreter, "joins", False)

    def prepared_wrongly(self: CBackend, i: Any, dtypes: Any) -> Any:
        prepared = right(self, i, dtypes)
        if prepared is None or i.opcode != Opcode.REDUCE or not i.is_f32_sum or i.numel < 20:
            return prepared
        return lambda *given: flipped(prepared(*given), 7)

    monkeypatch.setattr(CBackend, "_prepared", prepared_wrongly)


def wrong_chains(monkeypatch: pytest.MonkeyPatch, before: int | None = None) -> None:
    """Chains of elementwise instructions in C, of whose first result one bit is wrong; one by one they are right.

    before: only in the step after this one, in chains of `mlp` that read its number.
    """
    monkeypatch.setattr(Interpreter, "joins", False)
    right, body = CompiledChain.run, programs.read("mlp").program.body
    step_numbers = [n for n, i in enumerate(body) if (i.opcode, i.function) == (Opcode.SOURCE, 1)]

    def chain(self: CompiledChain, values: Any, given: Any = ()) -> Any:
        step = next((int(values[n]) for n in step_numbers if n in values), None)
        results = right(self, values, given)
        first = results[min(results)]
        if before in (None, step) and first.dtype == torch.float32 and first.numel() > 10:
            flipped(first, 3)
        return results

    monkeypatch.setattr(CompiledChain, "run", chain)


def wrong_exp(monkeypatch: pytest.MonkeyPatch, times: float = inf) -> None:
    """The exponential of torch alone, which every back-end trusts."""
    right = TorchBackend._map

    def mapped(self: TorchBackend, i: Any, dtypes: Any) -> Any:
        prepared = right(self, i, dtypes)

        def computed(*given: Any) -> Any:
            nonlocal times
            times -= 1
            return flipped(prepared(*given).clone(), 0) if times >= 0 else prepared(*given)

        return computed if i.function == isa.MapFunction.EXP else prepared

    monkeypatch.setattr(TorchBackend, "_map", mapped)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "sums": (wrong_sums, C, "reduce sum"),
    "chains": (wrong_chains, C, "map add"),
    "torch": (wrong_exp, TORCH, "map exp"),
}
PLACE = re.compile(
    r"first in step (\d+), instruction (\d+) \(([a-z0-9_ ]+)\), element (\d+): (\w+) instead of (\w+), "
    r"computed from (.*)"
)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_difference_of_a_wrong_back_end_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operands, by the integer reference, give the element that is right; all before it is right."""
    break_it, backend, name = FAULTS[fault]
    choice = BackendChoice(backend=backend) if backend == TORCH else by_c()
    break_it(monkeypatch)
    program = programs.read("mlp")
    found = compute(program, choice)
    assert not found.equal
    assert found.root is not None
    place = PLACE.fullmatch(found.problem)
    assert place
    assert (place[1], place[3]) == ("1", name)
    assert int(place[5], 16) ^ int(place[6], 16) == 1
    i = program.program.body[int(place[2])]
    bits = {(int(v), int(at)): int(raw, 16) for v, at, raw in re.findall(r"value (\d+)\[(\d+)\] = (\w+)", place[7])}
    assert 0 < len(bits) <= corpus_runs.SHOWN
    read = lambda operand, where: bits[i.operands[operand].value, where]  # noqa: E731
    right = element(i, int(place[4]), read, program.program.operand_dtypes(i))
    assert f"{right:08x}" == place[6]
    assert found.problem in str(found)


@pytest.mark.parametrize("name", slow_except(["narrow", "gru", "logged", "lora"], "narrow"))
def test_a_wrong_long_sum_lists_only_some_of_its_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at other precisions, where logs are followed, and where frozen entries are held in bfloat16."""
    choice = by_c()
    wrong_sums(monkeypatch)
    found = compute(programs.read(name), choice)
    place = PLACE.fullmatch(found.problem)
    assert place
    assert place[3].startswith(("reduce sum", "scatter_sum"))
    assert place[7].count("value") <= corpus_runs.SHOWN


@pytest.mark.slow
def test_a_wrong_commit_is_reported_as_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value is right, and what becomes the state is not."""
    right = Planned.new_state

    def new_state(self: Planned) -> State:
        state = right(self)
        if isinstance(self, OneByOne) or self.machine.arithmetic.backend.name != TORCH:
            return state
        name = next(name for name, tensor in state.items() if tensor.dtype == torch.float32 and tensor.numel() > 10)
        return state | {name: flipped(state[name].clone(), 5)}

    monkeypatch.setattr(Planned, "new_state", new_state)
    found = compute(programs.read("mlp"), BackendChoice(backend=TORCH))
    place = PLACE.fullmatch(found.problem)
    assert place
    assert (place[1], place[3], place[4]) == ("1", "commit", "5")


@pytest.mark.slow
def test_a_fault_in_a_later_step_is_found_in_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything before it is right, and so is what the kernels compute of other steps."""
    choice = by_c()
    wrong_chains(monkeypatch, 12)
    found = compute(programs.read("mlp"), choice)
    assert found.problem.startswith("first in step 13, instruction ")


def test_a_fault_that_cannot_be_repeated_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_exp(monkeypatch, times=1)
    found = compute(programs.read("mlp"), BackendChoice(backend=TORCH))
    assert (found.equal, found.problem) == (False, corpus_runs.UNREPEATED)
    assert corpus_runs.UNREPEATED in str(found)


@pytest.mark.parametrize("kind", [ConfigurationError, RuntimeError])
def test_a_failed_run_is_reported_without_paths(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise kind("no memory\nleft")

    monkeypatch.setattr(TorchBackend, "prepare", refuse)
    found = compute(programs.read("every"), BackendChoice(backend=TORCH))
    assert (found.root, found.problem) == (None, f"{kind.__name__}: no memory left")
    assert ComputedRun.read(found.document()) == found
    assert f"got none; {found.problem}" in str(found)


# ---------------------------------------------------------------- statements


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stated") / "statement.json"
    assert run(tiebreak, ["corpus", "run", "every", "--note", "a test", "-o", str(path)]) == 0
    return path


def test_corpus_check_verifies_a_statement_and_its_required_signer(
    stated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiebreak, ["corpus", "check", str(stated)]) == 0
    words = capsys.readouterr().out
    assert "note: a test" in words
    assert "cpu, torch: 1 of 1 programs reach their root" in words
    assert run(tiebreak, ["corpus", "check", str(stated), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is True
    assert {one["backend"] for one in found["computed"]} == {choice.backend for choice in choices(["cpu"])}
    (signer,) = found["signers"]
    assert run(tiebreak, ["corpus", "check", str(stated), "--require", signer]) == 0
    other = f"0x{KEY.address.hex()}"
    assert run(tiebreak, ["corpus", "check", str(stated), "--require", other]) == 2
    assert f"expected a signature by {other}, got none" in capsys.readouterr().err


def test_a_statement_names_no_host_user_or_path(stated: Path) -> None:
    found, _ = programs.check(stated)
    texts = [*found.environment.values(), *(one.problem for one in found.computed)]
    for private in (platform.node(), getpass.getuser(), str(Path.home()), str(ROOT), str(Path.cwd()), str(stated)):
        assert all(private not in text for text in texts)


def test_corpus_check_imports_no_torch(stated: Path) -> None:
    assert not (HEAVY - {"numpy"}) & running(["corpus", "check", str(stated)])


@pytest.mark.slow
def test_a_wrong_root_is_stated_with_its_reason_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong_exp(monkeypatch)
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    path = tmp_path / "wrong.json"
    assert run(tiebreak, ["corpus", "run", "mlp", "--device", "cpu", "-o", str(path), "--json"]) == 2
    (made,) = json.loads(capsys.readouterr().out)["computed"]
    assert "(map exp)" in made["problem"]
    assert run(tiebreak, ["corpus", "check", str(path)]) == 2
    assert "mlp (cpu, torch): expected root 53f341b9" in capsys.readouterr().out


def test_corpus_run_refuses_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["-o", str(tmp_path / "s.json")]
    for arguments, words in (
        (["nothing"], "expected one of the programs"),
        (["mlp", "--device", "cuda:99"], "expected a device"),
        (["mlp", "--note", "a\nb"], "expected a note"),
    ):
        assert run(tiebreak, ["corpus", "run", *arguments, *output]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()


def signed(document: dict[str, Any]) -> bytes:
    return sign(Envelope(payload=payload_of(document)), KEY).encode()


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "hostile.json"
    path.write_bytes(data)
    with pytest.raises(VerificationError) as error:
        programs.check(path)
    return str(error.value)


def changes() -> Iterator[tuple[str, Callable[[dict[str, Any]], object], str]]:
    """(name, a change of a statement's document, what the refusal says)."""
    root = "ab" * 32
    one = lambda d: d["predicate"]["computed"][0]  # noqa: E731
    yield "expected root", lambda d: one(d).update(expected=root, equal=False), "expected root a3675d"
    yield "equal", lambda d: one(d).update(root=root), "equal"
    yield "unequal", lambda d: one(d).update(equal=False), "equal"
    yield "program", lambda d: one(d).update(program="mlp"), "expected a run of each program"
    yield "subject", lambda d: d["subject"][0].update(name="nothing"), "expected a run of each program"
    yield "digest", lambda d: d["subject"][0]["digest"].update(sha256=root), "expected every of this corpus"
    yield "twice", lambda d: d["subject"].append(d["subject"][0]), "subject"
    yield "none", lambda d: d["predicate"].update(computed=[]), "expected 1 to 256 runs"
    yield "many", lambda d: d["predicate"].update(computed=[one(d)] * 257), "expected 1 to 256 runs"
    yield "more", lambda d: d["predicate"].update(more=1), "other fields"
    yield "kind", lambda d: d.update(predicateType="urn:other"), "urn:tiebreak:corpus:1"
    yield "terminal", lambda d: d["predicate"].update(note="\x1b[2J"), "expected printable text"
    yield "machine", lambda d: d["predicate"]["environment"].update({"a\n": "b"}), "printable"
    yield "long", lambda d: d["predicate"].update(note="x" * 256), "expected printable text"
    yield "time", lambda d: one(d).update(milliseconds=-1), "milliseconds"
    yield "float", lambda d: one(d).update(milliseconds=1.5), "milliseconds"
    yield "device", lambda d: one(d).update(device="cpu "), "name of a device"
    yield "problem", lambda d: one(d).update(problem="x" * 1001), "printable text"
    yield "no problem", lambda d: one(d).update(problem=""), "printable text"


@pytest.mark.parametrize(("change", "words"), [c[1:] for c in changes()], ids=[c[0] for c in changes()])
def test_a_hostile_statement_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, stated: Path, tmp_path: Path
) -> None:
    """Each is signed by its maker's key: a signature alone proves nothing."""
    document = json.loads(Envelope.decode(stated.read_bytes()).payload.data)
    assert programs.check(stated)[0].document() == document
    change(document)
    said = refused(tmp_path, signed(document))
    assert words in said
    assert "hostile.json" in said


def test_a_hostile_envelope_is_refused(stated: Path, tmp_path: Path) -> None:
    envelope = Envelope.decode(stated.read_bytes())
    assert "expected at most" in refused(tmp_path, b"{" * (200 << 10))
    assert "expected JSON" in refused(tmp_path, b"\xff")
    for unsigned in (replace(envelope, signatures=()), replace(envelope, signatures=(("cosign", b"x"),))):
        assert "expected a signature under an address, got none" in refused(tmp_path, unsigned.encode())
    (key_id, signature), other = envelope.signatures[0], f"0x{KEY.address.hex()}"
    flipped_bit = replace(envelope, signatures=((key_id, bytes([signature[0] ^ 1]) + signature[1:]),))
    assert "expected a signature by" in refused(tmp_path, flipped_bit.encode())
    assert "expected a signature by" in refused(tmp_path, replace(envelope, signatures=((other, signature),)).encode())
    spaced = json.dumps(json.loads(envelope.payload.data), indent=1).encode()
    respelled = sign(Envelope(payload=Payload(kind=envelope.payload.kind, data=spaced)), KEY)
    assert "another spelling" in refused(tmp_path, respelled.encode())
    nested = Payload(kind=envelope.payload.kind, data=b'{"a":' * 20 + b"1" + b"}" * 20)
    assert "brackets" in refused(tmp_path, sign(Envelope(payload=nested), KEY).encode())


def test_published_statements_verify_and_are_listed_in_the_docs(cases: CaseCounter) -> None:
    """The statements in the repository are of this corpus, and docs/corpus.md lists each with its signer."""
    page = (ROOT / "docs" / "corpus.md").read_text()
    sealed = sorted(SEALED.glob("*.json"))
    assert {"x86-avx512.json", "x86-avx2.json"} <= {path.name for path in sealed}
    for path in sealed:
        found, signers = programs.check(path)
        assert not found.differing
        assert f"corpus/sealed/{path.name}" in page
        assert all(f"0x{signer.hex()}" in page for signer in signers)
        cases()
