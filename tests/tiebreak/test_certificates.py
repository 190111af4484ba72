"""`tiebreak certify` and `tiebreak verify`, and what other tools make of a certificate."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import json_format
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from safetensors.torch import load_file, save_file
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.exceptions import VerificationError as OtherVerificationError
from securesystemslib.signer import SSlibKey

from tests.tiebreak.parties import Commands, Parties
from tiebreak import open_run
from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import read_weights
from tiebreak.api.certification.folders import doubtful
from tiebreak.api.signing.attesting import attesting_key
from tiebreak.api.training.reading import CHECKS
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import UNCHECKED
from tiebreak.protocol.commitments.certificate import MAX_EVIDENCE_BYTES
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, from_base64

Tensors = dict[str, torch.Tensor]


def statement_of(payload: bytes) -> Any:
    """A valid statement, as in-toto's own library reads it."""
    statement = Statement.copy_from_pb(json_format.Parse(payload, StatementMessage()))
    statement.validate()
    return statement.pb


class Desk:
    """A finished run, its weights, and a certificate signed by its trainer and its client."""

    def __init__(self, parties: Parties, folder: Path, command: Commands) -> None:
        self.parties, self.folder, self.command, self.run = parties, folder, command, parties.path("run")
        self.weights, self.certificate = folder / "model.safetensors", folder / "certificate.json"
        command("weights", self.run, "-o", self.weights)

    def certify(self, who: str, *more: object, folder: Path | None = None, code: int = 0) -> str:
        key = ["--key", self.parties.path(f"{who}.pem")] if who else []
        model = ["--weights", self.weights, "-o", self.certificate]
        return self.command("certify", folder or self.run, *model, *key, *more, code=code)

    def verify(self, model: Path, *more: object, code: int = 0) -> str:
        """What the command prints on stdout and stderr."""
        return "".join(self.command.printed("verify", model, self.certificate, *more, code=code))


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    made = Desk(parties, tmp_path, command)
    made.certify("trainer")
    made.certify("client")
    return made


def test_a_certificate_can_be_cosigned_and_verifies(desk: Desk, tmp_path: Path) -> None:
    replay = tmp_path / "replay"
    assert desk.parties.audit(desk.run, replay) == 0
    desk.certify("stranger", folder=replay)
    told = desk.verify(desk.weights)
    for expected in (
        "The certificate holds for keys that anybody can make: no --require is given.\n",
        "4 tensors in", desk.parties.address("client"), "signed too, and so says that its own replay",
        "with no chain to judge them", "What it does not prove", "5 entries of the state", "anybody can make keys",
    ):  # fmt: skip
        assert expected in told
    required = [x for who in ("client", "stranger") for x in ("--require", desk.parties.address(who))]
    found = json.loads(desk.verify(desk.weights, "--json", *required))
    assert found["required"] == required[1::2]
    assert desk.verify(desk.weights, *required).startswith(
        f"The certificate holds, signed by {required[1]}, {required[3]}.\n"
    )
    assert (found["holds"], [one["by"] for one in found["signatures"]]) == (True, ["trainer", "client", "auditor"])
    before = desk.certificate.read_bytes()
    desk.certify("client")
    assert desk.certificate.read_bytes() == before, "the same signature again"
    (tmp_path / "renamed.safetensors").write_bytes(desk.weights.read_bytes())
    desk.verify(tmp_path / "renamed.safetensors")


def test_a_certificate_says_what_was_compared_with_pytorch(desk: Desk, tmp_path: Path) -> None:
    assert "by its maker's word" not in desk.verify(desk.weights), "all of it"
    shutil.copytree(desk.run, tmp_path / "sliced")
    (tmp_path / "sliced" / UNCHECKED).write_text("slice: whatever else it says")
    desk.certificate.unlink()
    desk.certify("trainer", folder=tmp_path / "sliced")
    assert f"by its maker's word, {CHECKS['slice']}." in desk.verify(desk.weights)


def test_in_totos_libraries_read_a_certificate(desk: Desk) -> None:
    document = json.loads(desk.certificate.read_text())
    found = OtherEnvelope.from_dict(json.loads(desk.certificate.read_text()))
    keys = []
    for who in ("trainer", "client"):
        path = desk.parties.path(f"{who}.pem")
        public = attesting_key(load_key(path)).public_key()
        key_id = next(
            one["keyid"] for one in document["signatures"][1::2] if one["keyid"] not in [k.keyid for k in keys]
        )
        keys.append(SSlibKey.from_crypto(public, keyid=key_id))
        assert SSlibKey.from_crypto(public).keyval["public"] == desk.command("key", path, "--public")
    assert set(found.verify(keys, 2)) == {key.keyid for key in keys}
    statement = statement_of(found.payload)
    assert statement.predicate_type == "urn:tiebreak:certificate:1"
    assert [subject.name for subject in statement.subject] == ["model.safetensors"]
    found.payload += b" "
    with pytest.raises(OtherVerificationError):
        found.verify(keys, 1)


def bias(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({"head.bias": change(tensors["head.bias"])})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (bias(lambda x: torch.nextafter(x, torch.full_like(x, 9.0))), "another name, type, shape or value"),
        (lambda tensors: tensors.update(more=torch.zeros(2)), "expected 4 tensors of the state, got 5"),
        (bias(lambda x: x.view(torch.int32)), "expected F32, BF16, F16, I64 or BOOL"),
    ],
    ids=["changed", "added", "retyped"],
)
def test_changed_weights_fail_verification(
    desk: Desk, tmp_path: Path, change: Callable[[Tensors], object], said: str
) -> None:
    tensors = load_file(desk.weights)
    change(tensors)
    save_file(tensors, tmp_path / "other.safetensors")
    for more in ([], ["--resaved"]):
        told = desk.verify(tmp_path / "other.safetensors", *more, code=2)
        assert (said in told, "other.safetensors" in told) == (True, True)


def test_equal_tensors_in_other_bytes_verify_only_with_resaved_option(desk: Desk, tmp_path: Path) -> None:
    save_file(load_file(desk.weights), tmp_path / "other.safetensors", metadata={"saved": "again"})
    assert "pass --resaved" in desk.verify(tmp_path / "other.safetensors", code=2)
    desk.verify(tmp_path / "other.safetensors", "--resaved")


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


def test_a_sharded_model_folder_is_certified_and_verified(desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "pretrained"
    index = sharded(desk, folder)
    assert "config.json" in desk.verify(folder, "--resaved")
    desk.weights, desk.certificate = folder, tmp_path / "sharded.json"
    desk.certify("trainer")
    desk.verify(folder)
    first = folder / "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index | {"head.bias": "model-00002-of-00002.safetensors"}})
    )
    assert "'head.bias' otherwise" in desk.verify(folder, code=2)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "again.safetensors").write_bytes(first.read_bytes())
    assert "expected each tensor once" in desk.verify(folder, code=2)
    (folder / "again.safetensors").unlink()
    assert "'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'" in desk.verify(folder, code=2)
    (tmp_path / "outside").write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to(tmp_path / "outside")
    assert "got a symbolic link" in desk.verify(folder, code=2)
    (tmp_path / "empty").mkdir()
    assert "files in the folder, got none" in desk.verify(tmp_path / "empty", code=1)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("pytorch_model.bin", "", "'pytorch_model.bin'"), ("modeling.py", "", "'modeling.py'"),
        ("adapter_config.json", "{}", "'adapter_config.json'"), ("checkpoint-1", None, "'checkpoint-1'"),
        ("pytorch_model.bin.index.json", "{}", "'pytorch_model.bin.index.json'"),
        ("config.json", '{"transformers_weights": "x"}', "'config.json with transformers_weights'"),
        ("tokenizer_config.json", '{"auto_m\\u0061p": {}}', "'tokenizer_config.json with auto_map'"),
        ("processor.json", '{"a": [{"b": {"auto_map": {"A": "x--y.Z"}}}]}', "'processor.json with auto_map'"),
        ("config.json", '{"text_config": {"attn_implementation": "org/kernel"}}',
         "'config.json with attn_implementation'"),
        ("config.json", '{"_attn_implementation_internal": {"t": "paged|org/kernel@1:f"}}',
         "'config.json with _attn_implementation_internal'"),
        ("config.json", '{"experts_implementation": "org/kernel"}', "'config.json with experts_implementation'"),
        ("config.json", '{"vision_config": {"quantization_config": {}}}', "'config.json with quantization_config'"),
        ("config.json", '{"compression_config": {}}', "'config.json with compression_config'"),
        ("config.json", '{"torch_dtype": "bfloat16"}', "'config.json with torch_dtype'"),
        ("config.json", '{"dtype": {"text_config": "float16"}}', "'config.json with dtype'"),
        ("config.json", '{"tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]}',
         "'config.json with tie_word_embeddings'"),
        ("config.json", '{"use_pretrained_backbone": true, "backbone": "x"}',
         "'config.json with use_pretrained_backbone'"),
        ("config.json", '{"custom_pipelines": {"x": {"impl": "x.Y"}}}', "'config.json with custom_pipelines'"),
        ("sentence_bert_config.json", '{"model_args": {"trust_remote_code": true}}',
         "'sentence_bert_config.json with trust_remote_code'"),
        ("modules.json", "[]", "'modules.json'"), ("model_index.json", "{}", "'model_index.json'"),
        ("config.7.0.json", '{"auto_map": {}}', "'config.7.0.json with auto_map'"),
        ("config.json", "[" * 50_000 + "]" * 50_000, "'config.json with more than is read here'"),
        ("model.pt", "", "'model.pt'"), ("custom_generate", None, "'custom_generate'"),
    ],
)  # fmt: skip
def test_folders_whose_loader_would_read_other_files_are_refused(
    desk: Desk, tmp_path: Path, name: str, content: str | None, named: str
) -> None:
    """Whatever its author signed for: the certificate is one of the tensors."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    desk.weights.rename(folder / "model.safetensors")
    for harmless in ("config.json", "tokenizer.json", "README.md", "LICENSE"):
        (folder / harmless).write_text("[" if harmless == "config.json" else "{}")
    desk.verify(folder)
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).write_text(content)
    assert f"got {named}: who loads the folder" in desk.verify(folder, code=2)
    told = desk.verify(folder, "--others")
    assert f"'{name}'" in told
    (folder / "model.safetensors").rename(folder / "renamed.safetensors")
    assert "'renamed.safetensors'" in desk.verify(folder, code=2)


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": False, "architectures": ["BertModel"]}, {"tie_word_embeddings": True},
        {"attn_implementation": "flash_attention_2"}, {"quantization_config": None, "trust_remote_code": False},
        {"torch_dtype": "torch.float32"}, {"dtype": None},
    ],
    ids=str,
)  # fmt: skip
def test_harmless_model_configurations_verify(desk: Desk, tmp_path: Path, config: Any) -> None:
    folder = tmp_path / "pretrained"
    folder.mkdir()
    desk.weights.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text('{"auto_map": 1}')  # a token
    desk.verify(folder)


@pytest.mark.parametrize(("head", "is_named"), [(2.0, True), (1.0, False)])
def test_a_saved_head_replaced_by_tied_embeddings_is_reported(tmp_path: Path, head: float, is_named: bool) -> None:
    """With tied embeddings transformers puts the embedding in its place."""
    tensors = {"model.embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.full((2, 2), head)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"text_config": {"tie_word_embeddings": true}}')
    found = doubtful(tmp_path, read_weights(tmp_path), is_listed=False)
    assert found == (["config.json with tie_word_embeddings"] if is_named else [])


@pytest.fixture
def signed(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    """A certificate of a whole folder, which lies in it."""
    made = Desk(parties, tmp_path, command)
    folder = tmp_path / "pretrained"
    (folder / "1_Pooling").mkdir(parents=True)
    made.weights.rename(folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "README.md", "1_Pooling/config.json"):
        (folder / name).write_text(f'{{"name": "{name}"}}')
    (folder / "training_args.bin").write_bytes(b"arguments")
    made.weights, made.certificate = folder, folder / "certificate.json"
    made.certify("trainer")
    return made


def test_a_certificate_of_a_folder_is_for_each_of_its_files(signed: Desk) -> None:
    told = json.loads(signed.verify(signed.weights, "--json"))["other_files"]
    names = ["1_Pooling/config.json", "README.md", "chat_template.jinja", "config.json", "tokenizer.json"]
    assert told == {"signed": [*names, "training_args.bin"], "different": [], "unsigned": []}
    expected = {name: sha256((signed.weights / name).read_bytes()).hexdigest() for name in told["signed"]}
    assert certificate_of(signed)["predicate"]["others"] == expected
    assert "6 other files of" in signed.verify(signed.weights)
    (signed.weights / "README.md").write_text("with the card")
    told = signed.verify(signed.weights)
    assert "not as they were signed for, or missing: 'README.md'" in told, "which no loader opens"
    signed.certify("client")
    signed.verify(signed.weights / "model.safetensors")  # of a file alone, the tensors


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{}", "'config.json, not as it was signed for'"),
        ("chat_template.jinja", None, "'chat_template.jinja, not as it was signed for'"),
        ("1_Pooling/config.json", "{ }", "'1_Pooling', '1_Pooling/config.json, not as it was signed for'"),
        ("generation_config.json", "{}", "'generation_config.json, which nobody signed for'"),
        ("vocab.txt", "", "'vocab.txt, which nobody signed for'"),
        ("1_Pooling/more.json", "{}", "'1_Pooling'"), ("2_More/config.json", "{}", "'2_More'"),
    ],
)  # fmt: skip
def test_files_changed_after_signing_are_named(signed: Desk, name: str, content: str | None, said: str) -> None:
    path = signed.weights / name
    if content is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    assert f"got {said}: who loads" in signed.verify(signed.weights, code=2)
    signed.verify(signed.weights, "--others")
    if "nobody" in said or "more" in name.lower():
        signed.certify("client")  # whose folder has all that the certificate names
    else:
        assert "expected the other files that the certificate names" in signed.certify("client", code=2)
    before, signed.weights = signed.certificate, signed.weights / "model.safetensors"
    assert "got none or others of" in signed.certify("client", code=2), "a file alone is no folder"
    assert signed.certificate == before


def test_a_hostile_folder_is_read_within_bounds(signed: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = signed.weights
    outside = tmp_path / "outside"
    outside.write_text('{"name": "1_Pooling/config.json"}')
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "1_Pooling" / "config.json").symlink_to(outside)
    assert "'1_Pooling/config.json, not as it was signed for'" in signed.verify(folder, code=2), "a link, not followed"
    (folder / "1_Pooling" / "config.json").unlink()
    os.mkfifo(folder / "1_Pooling" / "config.json")
    assert "'1_Pooling/config.json, not as it was signed for'" in signed.verify(folder, code=2)
    (folder / "1_Pooling" / "config.json").unlink()
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 43)  # takes no room, and an hour to read
    assert "'tokenizer.json, not as it was signed for'" in signed.verify(folder, code=2)
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 43)
    assert "'config.json with more than is read here'" in signed.verify(folder, code=2)
    (folder / "config.json").write_text("{}")
    deep = folder.joinpath("deep", *"x" * 40)
    deep.mkdir(parents=True)
    assert "'deep'" in signed.verify(folder, code=2)
    there, signed.certificate = signed.certificate, tmp_path / "new.json"
    assert "expected at most 268435456 bytes" in signed.certify("trainer", code=2), "nobody signs such a file"
    (folder / "tokenizer.json").unlink()
    for number in range(120):
        (folder / f"{number}.txt").write_text("")
    assert "expected at most 100 files beside the weights" in signed.certify("trainer", code=1)
    monkeypatch.setattr(folders, "MAX_ENTRIES", 100)  # ten thousand files take a while to make
    signed.certificate = there
    assert "expected at most 100 files and folders, got more" in signed.verify(folder, "--others", code=2)


def test_long_folder_listings_do_not_hide_files_that_loaders_read(desk: Desk, tmp_path: Path) -> None:
    """The certified weights are renamed, and what transformers loads comes after many harmless names."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    desk.weights.rename(folder / "weights.safetensors")
    for number in range(30):
        (folder / f"a-{number:02}{'x' * 90}.txt").write_text("")
    (folder / "pytorch_model.bin").write_text("")
    assert "got 'pytorch_model.bin', 'weights.safetensors': who" in desk.verify(folder, code=2)
    assert " and 11 more." in desk.verify(folder, "--others")


def test_malformed_weights_and_certificates_are_refused(desk: Desk, tmp_path: Path) -> None:
    save_file({}, tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(desk.weights.read_bytes()[:-1])
    for name, said in (("none", "at least one tensor"), ("cut", "to fill|expected .* bytes")):
        told = desk.verify(tmp_path / f"{name}.safetensors", code=2)
        assert re.search(said, told)
        assert f"{name}.safetensors" in told
    right = desk.certificate.read_bytes()
    for wrong, said in (
        (b"", "expected JSON"),
        (right + b" " * MAX_ENVELOPE_BYTES, f"at most {MAX_ENVELOPE_BYTES} bytes"),
    ):
        desk.certificate.write_bytes(wrong)
        told = desk.verify(desk.weights, code=2)
        assert (said in told, "certificate.json" in told) == (True, True), told


def test_required_signatures_that_are_missing_or_stripped_are_reported(desk: Desk) -> None:
    told = desk.verify(desk.weights, "--require", desk.parties.address("stranger"), code=2)
    assert f"expected a signature by {desk.parties.address('stranger')}, got none" in told
    document = json.loads(desk.certificate.read_text())
    document["signatures"] = [one for one in document["signatures"] if one["keyid"] != desk.parties.address("client")]
    desk.certificate.write_text(json.dumps(document))
    assert "got none" in desk.verify(desk.weights, "--require", desk.parties.address("client"), code=2)
    desk.verify(desk.weights)


def test_certify_refuses_weights_that_differ_from_the_signers_own_run(desk: Desk, tmp_path: Path) -> None:
    fresh = desk.parties.path("agreed")
    assert "records of all 3 checkpoints, got 0" in desk.certify("stranger", folder=fresh, code=1)
    false = desk.parties.cheating(tmp_path / "false", 6)
    assert "expected it as model." in desk.certify("trainer", folder=false, code=2)
    honest, desk.weights, right = desk.weights, tmp_path / "false.safetensors", desk.certificate
    desk.command("weights", false, "-o", desk.weights)
    desk.certificate = tmp_path / "false.json"
    desk.certify("trainer", folder=false)
    desk.verify(desk.weights)  # until somebody replays it, a lie has a certificate
    assert "another name, type, shape or value" in desk.verify(honest, code=2)
    replay = tmp_path / "replay"
    assert desk.parties.audit(false, replay) == 2
    assert "records: expected root" in desk.certify("stranger", folder=replay, code=2)
    desk.weights = honest
    desk.certify("stranger", folder=replay, code=2)
    desk.certificate = right
    desk.certify("stranger", folder=replay)
    desk.certificate = tmp_path / "none.json"
    assert "the trainer's signed head" in desk.certify("stranger", folder=replay, code=1)
    assert "expected the key of whoever signs" in desk.certify("", code=1)


# ---------------------------------------------------------------- attestations

VERIFIER = """
import sys
kind, nonce = sys.argv[1:]
evidence = sys.stdin.buffer.read()
print("type", kind, "of this run" if evidence == b"signed nonce " + nonce.encode() else "OF ANOTHER RUN")
sys.exit(evidence != b"signed nonce " + nonce.encode())
"""


@pytest.fixture
def attested(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    desk = Desk(parties, tmp_path, command)
    (tmp_path / "evidence").write_text(f"signed nonce {open_run(desk.run).root}")
    desk.certify("trainer", "--attestation", "made-up-gpu", tmp_path / "evidence")
    return desk


def asked(desk: Desk, script: str, *more: str, code: int = 0) -> str:
    """Verifies the weights, and has a script look at the attestation."""
    path = desk.folder / "verifier.py"
    path.write_text(script)
    return desk.verify(desk.weights, "--attestation-verifier", f"{sys.executable} -IS '{path}'", *more, code=code)


def test_an_attestation_is_handed_to_the_users_verifier_and_decides_nothing(attested: Desk) -> None:
    desk = attested
    told = desk.verify(desk.weights)
    assert "What the attestation in it, of type made-up-gpu, says of a machine: nothing here reads it" in told
    told = asked(desk, VERIFIER, "--require-attestation")
    assert "the verifier of attestations ended with 0 and said:\n  | type made-up-gpu of this run" in told
    desk.certify("client")  # others sign the same statement
    told = json.loads(asked(desk, VERIFIER, "--json"))
    assert told["attestation_verifier"] == {"code": 0, "text": "type made-up-gpu of this run"}
    found = certificate_of(desk)["predicate"]["attestation"]
    assert found["nonce"] == open_run(desk.run).root
    desk.certify("client", "--attestation", "made-up-gpu", desk.folder / "evidence", code=1)


def test_evidence_of_another_run_fails_only_a_required_attestation(attested: Desk) -> None:
    evidence = attested.folder / "evidence"
    evidence.write_text(f"signed nonce {'0' * 64}")
    attested.certificate.unlink()
    attested.certify("trainer", "--attestation", "made-up-gpu", evidence)
    assert "ended with 1 and said:\n  | type made-up-gpu OF ANOTHER RUN" in asked(attested, VERIFIER)
    asked(attested, VERIFIER, "--require-attestation", code=2)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import sys; sys.exit('cannot')", "ended with 1 and said:\n  | cannot"),
        ("import time; time.sleep(600)", "was stopped and said:"),
        ("import os, time\nif os.fork(): os._exit(0)\nos.setsid(); time.sleep(2)", "was stopped and said:"),
        ("while True: print('x' * 99)", "was stopped and said:\n  | xxx"),
        ("import os; print(*(name for name in os.environ if 'PASS' in name), '.')", "said:\n  | ."),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"),
        ("import os; os.write(1, b'\\x1b[2Jholds\\r\\x9b\\xff\\xe2\\x80\\xae')", r"\x1b[2Jholds\r\x9b\xff\u202e"),
    ],
)
def test_failing_hanging_or_flooding_attestation_verifiers_are_contained(
    attested: Desk, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    monkeypatch.setattr("tiebreak.api.certification.attestation.SECONDS", 0.3 if "sleep" in script else 20.0)
    told = asked(attested, script)
    assert expected in told
    assert len(told) < 20_000
    assert all(c == "\n" or c.isprintable() for c in told)
    if "SIGSEGV" in script:
        asked(attested, script, "--require-attestation", code=2)


def test_missing_or_invalid_attestations_are_refused(desk: Desk, tmp_path: Path) -> None:
    assert "was not asked: the certificate has none" in asked(desk, VERIFIER)
    asked(desk, VERIFIER, "--require-attestation", code=2)
    desk.verify(desk.weights, "--require-attestation", code=1)
    desk.certificate.unlink()
    evidence = tmp_path / "evidence"
    for name, size in (("made-up", MAX_EVIDENCE_BYTES + 1), ("made-up", 0), ("Made up", 1)):
        evidence.write_bytes(bytes(size))
        desk.certify("trainer", "--attestation", name, evidence, code=2)
        assert not desk.certificate.exists()
    evidence.write_bytes(bytes(MAX_EVIDENCE_BYTES))
    desk.certify("trainer", "--attestation", "made-up", evidence)
    desk.verify(desk.weights, "--attestation-verifier", tmp_path / "no-such-file", code=1)
    assert desk.certificate.stat().st_size < 20_000


def certificate_of(desk: Desk) -> Any:
    return json.loads(from_base64("payload", json.loads(desk.certificate.read_text())["payload"]))
