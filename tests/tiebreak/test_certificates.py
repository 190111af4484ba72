"""`tiebreak certify` and `tiebreak verify`, and what other tools make of a certificate."""

import json
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from safetensors.torch import load_file, save_file
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.exceptions import VerificationError as OtherVerificationError
from securesystemslib.signer import SSlibKey

from tests.tiebreak.parties import Parties, doubled_weight
from tiebreak import AdamW, open_run, train
from tiebreak.api.certifying import attesting_key, public_pem
from tiebreak.cli.key import load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.protocol.commitments.certificate import MAX_EVIDENCE_BYTES
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, from_base64

Tensors = dict[str, torch.Tensor]


class Desk:
    """A finished run, its weights, and a certificate signed by its trainer and its client."""

    def __init__(self, parties: Parties, folder: Path, capsys: Any) -> None:
        self.parties, self.folder, self._capsys = parties, folder, capsys
        self.run = parties.trained(folder / "run")
        self.weights, self.certificate = folder / "model.safetensors", folder / "certificate.json"
        assert run(tiebreak, ["weights", str(self.run), "-o", str(self.weights)]) == 0

    def certify(self, who: str, *more: str, folder: Path | None = None) -> int:
        capsys_ = self._capsys
        capsys_.readouterr()
        key = ["--key", str(self.parties.path(f"{who}.pem"))] if who else []
        model = ["--weights", str(self.weights), "-o", str(self.certificate)]
        return run(tiebreak, ["certify", str(folder or self.run), *model, *key, *more])

    def verify(self, model: Path, *more: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run(tiebreak, ["verify", str(model), str(self.certificate), *more])
        told = self._capsys.readouterr()
        return code, told.out + told.err

    def address(self, who: str) -> str:
        return f"0x{load_key(self.parties.path(f'{who}.pem')).address.hex()}"


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(parties, tmp_path, capsys)
    assert made.certify("trainer") == 0
    assert made.certify("client") == 0
    return made


def test_a_certificate_is_made_signed_by_others_and_holds(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = tmp_path / "replay"
    assert desk.parties.audit(desk.run, replay) == 0
    assert desk.certify("stranger", folder=replay) == 0
    code, told = desk.verify(desk.weights)
    assert code == 0
    for expected in (
        "The certificate holds", "4 tensors in", desk.address("client"), "signed too, and so says that its own replay",
        "with no chain to judge them", "What it does not prove", "5 entries of the state", "anybody can make keys",
    ):  # fmt: skip
        assert expected in told
    code, told = desk.verify(
        desk.weights, "--json", *(x for w in ("client", "stranger") for x in ("--require", desk.address(w)))
    )
    found = json.loads(told)
    assert (code, found["holds"], [one["by"] for one in found["signatures"]]) == (
        0,
        True,
        ["trainer", "client", "auditor"],
    )
    before = desk.certificate.read_bytes()
    assert desk.certify("client", "--card") == 0
    card = capsys.readouterr().out
    assert desk.certificate.read_bytes() == before, "the same signature again"
    assert f"tiebreak verify model.safetensors certificate.json --require {desk.address('trainer')}" in card
    assert found["final_state"] in card
    assert desk.certify("", "--card") == 0
    assert capsys.readouterr().out == card
    (tmp_path / "renamed.safetensors").write_bytes(desk.weights.read_bytes())
    assert desk.verify(tmp_path / "renamed.safetensors")[0] == 0


def test_in_totos_libraries_read_a_certificate(desk: Desk) -> None:
    document = json.loads(desk.certificate.read_text())
    found = OtherEnvelope.from_dict(json.loads(desk.certificate.read_text()))
    keys = []
    for who in ("trainer", "client"):
        key = load_key(desk.parties.path(f"{who}.pem"))
        public = attesting_key(key).public_key()
        key_id = next(
            one["keyid"] for one in document["signatures"][1::2] if one["keyid"] not in [k.keyid for k in keys]
        )
        keys.append(SSlibKey.from_crypto(public, keyid=key_id))
        assert SSlibKey.from_crypto(public).keyval["public"] == public_pem(key)
    assert set(found.verify(keys, 2)) == {key.keyid for key in keys}
    statement = Statement.copy_from_pb(json_format.Parse(found.payload, StatementMessage()))
    statement.validate()
    assert statement.pb.predicate_type == "urn:tiebreak:certificate:1"
    assert [subject.name for subject in statement.pb.subject] == ["model.safetensors"]
    found.payload += b" "
    with pytest.raises(OtherVerificationError):
        found.verify(keys, 1)


def test_the_public_key_for_other_tools_is_printed(parties: Parties, capsys: pytest.CaptureFixture[str]) -> None:
    path = parties.path("trainer.pem")
    capsys.readouterr()
    assert run(tiebreak, ["key", str(path), "--public"]) == 0
    assert capsys.readouterr().out == public_pem(load_key(path))
    assert public_pem(load_key(path)).startswith("-----BEGIN PUBLIC KEY-----")


def changed(tensors: Tensors) -> None:
    tensors["head.weight"][0, 0] = torch.nextafter(tensors["head.weight"][0, 0], torch.tensor(9.0))


def removed(tensors: Tensors) -> None:
    del tensors["head.bias"]


def added(tensors: Tensors) -> None:
    tensors["adapter.weight"] = torch.zeros(2)


def renamed(tensors: Tensors) -> None:
    tensors["head.offset"] = tensors.pop("head.bias")


def reshaped(tensors: Tensors) -> None:
    tensors["head.bias"] = tensors["head.bias"].reshape(3, 1)


def retyped(tensors: Tensors) -> None:
    tensors["head.bias"] = tensors["head.bias"].view(torch.int64 if len(tensors["head.bias"]) % 2 == 0 else torch.int32)


def halved(tensors: Tensors) -> None:
    tensors["head.bias"] = tensors["head.bias"].to(torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed, "another name, type, shape or value"),
        (removed, "expected 4 tensors of the state, got 3"),
        (added, "expected 4 tensors of the state, got 5"),
        (renamed, "another name, type, shape or value"),
        (reshaped, "another name, type, shape or value"),
        (retyped, "expected F32, I64 or BOOL"),
        (halved, "expected F32, I64 or BOOL"),
    ],
)
def test_weights_that_are_not_the_certified_ones(
    desk: Desk, tmp_path: Path, change: Callable[[Tensors], None], said: str
) -> None:
    tensors = load_file(desk.weights)
    change(tensors)
    save_file(tensors, tmp_path / "other.safetensors")
    for more in ([], ["--resaved"]):
        code, told = desk.verify(tmp_path / "other.safetensors", *more)
        assert (code, said in told, "other.safetensors" in told) == (2, True, True)


def test_files_with_other_bytes_and_the_same_tensors_need_a_word(desk: Desk, tmp_path: Path) -> None:
    save_file(load_file(desk.weights), tmp_path / "other.safetensors", metadata={"saved": "again"})
    code, told = desk.verify(tmp_path / "other.safetensors")
    assert (code, "pass --resaved" in told) == (2, True)
    assert desk.verify(tmp_path / "other.safetensors", "--resaved")[0] == 0


def sharded(desk: Desk, folder: Path) -> dict[str, str]:
    """The weights as `save_pretrained` writes them in two files, with their index."""
    folder.mkdir()
    tensors, index = load_file(desk.weights), {}
    for number, part in enumerate(("head", "hidden"), 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        held = {key: tensor for key, tensor in tensors.items() if key.startswith(part)}
        save_file(held, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(held, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text("{}")
    return index


def test_a_folder_of_several_files(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pretrained"
    index = sharded(desk, folder)
    code, told = desk.verify(folder, "--resaved")
    assert (code, "config.json" in told) == (0, True), told
    desk.weights, desk.certificate = folder, tmp_path / "sharded.json"
    assert desk.certify("trainer") == 0
    assert desk.verify(folder)[0] == 0
    first = folder / "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index | {"head.bias": "model-00002-of-00002.safetensors"}})
    )
    code, told = desk.verify(folder)
    assert (code, "'head.bias' otherwise" in told) == (2, True)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "again.safetensors").write_bytes(first.read_bytes())
    code, told = desk.verify(folder)
    assert (code, "expected each tensor once" in told) == (2, True)
    (folder / "again.safetensors").unlink()
    (tmp_path / "outside").write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to(tmp_path / "outside")
    code, told = desk.verify(folder)
    assert (code, "got a symbolic link" in told) == (2, True)
    (tmp_path / "empty").mkdir()
    code, told = desk.verify(tmp_path / "empty")
    assert (code, "files in the folder, got none" in told) == (1, True)


def test_files_that_are_no_weights_or_no_certificate(desk: Desk, tmp_path: Path) -> None:
    save_file({}, tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(desk.weights.read_bytes()[:-1])
    for name, said in (("none", "at least one tensor"), ("cut", "to fill|expected .* bytes")):
        code, told = desk.verify(tmp_path / f"{name}.safetensors")
        assert (code, f"{name}.safetensors" in told) == (2, True), said
    right = desk.certificate.read_bytes()
    for wrong, said in (
        (b"", "expected JSON"),
        (b"[]", "expected an object"),
        (right[:-9], "expected JSON"),
        (right + b" " * MAX_ENVELOPE_BYTES, f"at most {MAX_ENVELOPE_BYTES} bytes"),
        (right.replace(b'"payloadType"', b'"payload": "", "payloadType"'), "a name appears twice"),
    ):
        desk.certificate.write_bytes(wrong)
        code, told = desk.verify(desk.weights)
        assert (code, said in told, "certificate.json" in told) == (2, True, True), told


def test_stripped_and_missing_signatures(desk: Desk) -> None:
    code, told = desk.verify(desk.weights, "--require", desk.address("stranger"))
    assert (code, f"expected a signature by {desk.address('stranger')}, got none" in told) == (2, True)
    document = json.loads(desk.certificate.read_text())
    document["signatures"] = [one for one in document["signatures"] if one["keyid"] != desk.address("client")]
    desk.certificate.write_text(json.dumps(document))
    code, told = desk.verify(desk.weights, "--require", desk.address("client"))
    assert (code, "got none" in told) == (2, True)
    assert desk.verify(desk.weights)[0] == 0
    document["signatures"] = []
    desk.certificate.write_text(json.dumps(document))
    code, told = desk.verify(desk.weights)
    assert (code, "a signature by its trainer" in told) == (2, True)


def test_nobody_signs_what_its_own_files_do_not_say(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = desk.parties.signed(tmp_path / "fresh")
    assert desk.certify("stranger", folder=fresh) == 1
    assert "records of all 3 checkpoints, got 0" in capsys.readouterr().err
    false = desk.parties.tampered(tmp_path / "false", doubled_weight(fresh, 6))
    assert desk.certify("trainer", folder=false) == 2
    assert "expected it as model." in capsys.readouterr().err
    honest, desk.weights, right = desk.weights, tmp_path / "false.safetensors", desk.certificate
    assert run(tiebreak, ["weights", str(false), "-o", str(desk.weights)]) == 0
    desk.certificate = tmp_path / "false.json"
    assert desk.certify("trainer", folder=false) == 0
    assert desk.verify(desk.weights)[0] == 0, "until somebody replays it, a lie has a certificate"
    code, told = desk.verify(honest)
    assert (code, "another name, type, shape or value" in told) == (2, True)
    replay = tmp_path / "replay"
    assert desk.parties.audit(false, replay) == 2
    assert desk.certify("stranger", folder=replay) == 2
    assert "records: expected root" in capsys.readouterr().err
    desk.weights = honest
    assert desk.certify("stranger", folder=replay) == 2
    desk.certificate = right
    assert desk.certify("stranger", folder=replay) == 0
    desk.certificate = tmp_path / "none.json"
    assert desk.certify("stranger", folder=replay) == 1
    assert "the trainer's signed head" in capsys.readouterr().err
    assert desk.certify("") == 1
    assert "expected the key of whoever signs" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_transformers_with_tied_weights_however_it_is_saved(tmp_path: Path, desk: Desk) -> None:
    transformers = import_module("transformers")  # takes seconds, which only this test needs

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=32, use_cache=False)
    )
    keys = {who: load_key(desk.parties.path(f"{who}.pem")) for who in ("client", "trainer")}
    trained = train(
        model, lambda m, x: m(x[:, :-1]).logits.logsumexp(-1).mean(), optimizer=AdamW(lr=1e-3), batch=2, steps=2,
        data={"x": torch.randint(0, 100, (8, 9))}, directory=tmp_path / "tied", progress=False, **keys,
    )  # fmt: skip
    model.load_state_dict(trained.state_dict())
    for name, size in (("whole", "1GB"), ("shards", "30KB")):
        model.save_pretrained(tmp_path / name, max_shard_size=size)
    assert run(tiebreak, ["weights", str(trained.directory), "-o", str(tmp_path / "both.safetensors")]) == 0
    saved = [tmp_path / "whole", tmp_path / "shards", tmp_path / "both.safetensors"]
    assert len(load_file(saved[2])) == 1 + len(load_file(saved[0] / "model.safetensors"))
    for place in saved:
        desk.weights, desk.certificate = place, tmp_path / f"{place.name}.json"
        assert desk.certify("trainer", folder=trained.directory) == 0
        assert desk.verify(place)[0] == 0
        assert all(desk.verify(other, "--resaved")[0] == 0 for other in saved)


# ---------------------------------------------------------------- attestations

VERIFIER = """
import sys
kind, nonce = sys.argv[1:]
evidence = sys.stdin.buffer.read()
print("type", kind, "of this run" if evidence == b"signed nonce " + nonce.encode() else "OF ANOTHER RUN")
sys.exit(evidence != b"signed nonce " + nonce.encode())
"""


@pytest.fixture
def attested(parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[bytes], Desk]:
    def made(evidence: bytes = b"") -> Desk:
        desk = Desk(parties, tmp_path, capsys)
        root = open_run(desk.run).root
        (tmp_path / "evidence").write_bytes(evidence or f"signed nonce {root}".encode())
        assert desk.certify("trainer", "--attestation", "made-up-gpu", str(tmp_path / "evidence")) == 0
        return desk

    return made


def asked(desk: Desk, script: str, *more: str) -> tuple[int, str]:
    """Verifies the weights, and has a script look at the attestation."""
    path = desk.folder / "verifier.py"
    path.write_text(script)
    return desk.verify(desk.weights, "--attestation-verifier", f"{sys.executable} '{path}'", *more)


def test_an_attestation_is_handed_to_the_users_verifier_and_decides_nothing(attested: Callable[[], Desk]) -> None:
    desk = attested()
    code, told = desk.verify(desk.weights)
    assert code == 0
    assert "What the attestation in it, of type made-up-gpu, says of a machine: nothing here reads it" in told
    code, told = asked(desk, VERIFIER, "--require-attestation")
    assert code == 0
    assert (
        "Beside all that, the verifier of attestations ended with 0 and said:\n  | type made-up-gpu of this run" in told
    )
    assert desk.certify("client") == 0, "others sign the same statement"
    code, told = asked(desk, VERIFIER, "--json")
    assert (code, json.loads(told)["attestation_verifier"]) == (
        0,
        {"code": 0, "text": "type made-up-gpu of this run"},
    )
    found = certificate_of(desk)["predicate"]["attestation"]
    assert found["nonce"] == open_run(desk.run).root
    assert desk.certify("client", "--attestation", "made-up-gpu", str(desk.folder / "evidence")) == 1


def test_evidence_of_another_run_is_what_the_verifier_sees(attested: Callable[[bytes], Desk]) -> None:
    desk = attested(b"signed nonce " + b"0" * 64)
    code, told = asked(desk, VERIFIER)
    assert code == 0, "its word changes nothing"
    assert "The certificate holds" in told
    assert "ended with 1 and said:\n  | type made-up-gpu OF ANOTHER RUN" in told
    assert asked(desk, VERIFIER, "--require-attestation")[0] == 2


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import sys; sys.exit('cannot')", "ended with 1 and said:\n  | cannot"),
        ("import time; time.sleep(600)", "was stopped and said:"),
        ("import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(2)", "was stopped and said:"),
        ("while True: print('x' * 99)", "was stopped and said:\n  | xxx"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"),
        ("import os; os.write(1, b'\\x1b[2Jholds\\r\\x9b\\xff\\xe2\\x80\\xae')", r"\x1b[2Jholds\r\x9b\xff\u202e"),
    ],
)
def test_a_verifier_may_fail_hang_flood_and_write_what_it_likes(
    attested: Callable[[], Desk], monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    monkeypatch.setattr("tiebreak.api.attesting.SECONDS", 0.3 if "sleep" in script else 20.0)
    desk = attested()
    code, told = asked(desk, script)
    assert code == 0
    assert expected in told
    assert len(told) < 20_000
    assert all(c == "\n" or c.isprintable() for c in told)
    if "SIGSEGV" in script:
        assert asked(desk, script, "--require-attestation")[0] == 2


def test_attestations_that_are_not_there_or_not_possible(
    desk: Desk, parties: Parties, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = asked(desk, VERIFIER)
    assert code == 0
    assert "was not asked: the certificate has none" in told
    assert asked(desk, VERIFIER, "--require-attestation")[0] == 2
    assert desk.verify(desk.weights, "--require-attestation")[0] == 1
    desk.certificate.unlink()
    for name, size, code in (("made-up", MAX_EVIDENCE_BYTES + 1, 2), ("made-up", 0, 2), ("Made up", 1, 2)):
        (tmp_path / "evidence").write_bytes(bytes(size))
        assert desk.certify("trainer", "--attestation", name, str(tmp_path / "evidence")) == code
        assert not desk.certificate.exists()
    (tmp_path / "evidence").write_bytes(bytes(MAX_EVIDENCE_BYTES))
    assert desk.certify("trainer", "--attestation", "made-up", str(tmp_path / "evidence")) == 0
    assert desk.verify(desk.weights, "--attestation-verifier", str(tmp_path / "no-such-file"))[0] == 1
    assert desk.certificate.stat().st_size < 20_000


# ---------------------------------------------------------------- other formats


def test_slsa_provenance_is_read_by_in_totos_library(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    assert desk.certify("trainer", "--provenance", str(path)) == 0
    envelope = OtherEnvelope.from_dict(json.loads(path.read_text()))
    public = attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    envelope.verify([SSlibKey.from_crypto(public, keyid=next(iter(envelope.signatures)))], 1)
    statement = Statement.copy_from_pb(json_format.Parse(envelope.payload, StatementMessage()))
    statement.validate()
    assert statement.pb.predicate_type == "https://slsa.dev/provenance/v1"
    found = json_format.ParseDict(json_format.MessageToDict(statement.pb.predicate), Provenance())
    signed = certificate_of(desk)
    definition, details = found.build_definition, found.run_details
    job = signed["predicate"]["job"]
    assert definition.build_type == "urn:tiebreak:job:1"
    assert json_format.MessageToDict(definition.external_parameters)["job"] == job
    assert {one.name: dict(one.digest) for one in definition.resolved_dependencies} == {
        name: {"tiebreakRoot": job[name]} for name in ("program", "data", "firstState")
    }
    assert details.builder.id == f"urn:tiebreak:trainer:{desk.address('trainer')}"
    assert details.metadata.invocation_id == job["id"]
    assert not details.metadata.HasField("finished_on"), "nobody proves when"
    assert details.byproducts[0].digest["tiebreakRoot"] == open_run(desk.run).root
    assert [dict(one.digest) for one in statement.pb.subject] == [one["digest"] for one in signed["subject"]]
    assert desk.certify("client", "--provenance", str(path)) == 1, "the builder is the trainer"
    assert desk.certify("", "--provenance", str(path)) == 1


def test_a_model_signature_follows_the_format_of_openssf(desk: Desk, tmp_path: Path) -> None:
    path, key = tmp_path / "model.sig", load_key(desk.parties.path("client.pem"))
    assert desk.certify("client", "--model-signature", str(path)) == 0
    bundle = json.loads(path.read_text())
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    pem = public_pem(key).encode()
    assert bundle["verificationMaterial"]["publicKey"] == {"hint": sha256(pem).hexdigest()}
    envelope = OtherEnvelope.from_dict(bundle["dsseEnvelope"])
    public = SSlibKey.from_crypto(attesting_key(key).public_key(), keyid=next(iter(envelope.signatures)))
    envelope.verify([public], 1)
    statement = Statement.copy_from_pb(json_format.Parse(envelope.payload, StatementMessage()))
    statement.validate()
    digest = sha256(desk.weights.read_bytes())
    document = json.loads(envelope.payload)
    assert document["predicateType"] == "https://model_signing/signature/v1.0"
    assert document["predicate"]["resources"] == [
        {"name": "model.safetensors", "algorithm": "sha256", "digest": digest.hexdigest()}
    ]
    assert document["subject"][0]["digest"] == {"sha256": sha256(digest.digest()).hexdigest()}


def certificate_of(desk: Desk) -> Any:
    return json.loads(from_base64("payload", json.loads(desk.certificate.read_text())["payload"]))
