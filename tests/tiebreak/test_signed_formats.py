"""Signed files of `tiebreak certify --for`, checked by us and by their owners' own tools."""

import json
import random
import re
import runpy
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import json_format
from model_signing import hashing, verifying
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.signer import SSlibKey

from tests.tiebreak.fulcio import ISSUER, chained, key_of, logged, trust
from tests.tiebreak.parties import PASSPHRASE, Commands, Parties
from tests.tiebreak.test_certificates import Desk, certificate_of, statement_of
from tests.tiebreak.test_formats import ALL, mutants
from tiebreak.api.certification.certificates import read_certificate
from tiebreak.api.provenance import formats
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.provenance.x509_chains import identity, read_chain
from tiebreak.api.signing.attesting import attesting_key, signed_for_others
from tiebreak.cli.key import load_key
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import PAYLOAD_TYPE
from tiebreak.protocol.errors import SignatureError, VerificationError

ROOT: Final = Path(__file__).parents[2]
Tool = Callable[[bytes], bytes]
"""The owner's tool: the payload that it accepts in a file. Raises whatever it does for others."""


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    return in_folder(Desk(parties, tmp_path, command))


@pytest.fixture
def other(desk: Desk, tmp_path: Path, command: Commands) -> Desk:
    """Another run of the same job, by the same trainer."""
    (tmp_path / "other").mkdir()
    made = Desk(desk.parties, tmp_path / "other", command)
    made.run = desk.parties.cheating(tmp_path / "other" / "run", 5)
    made.weights.unlink()
    command("weights", made.run, "-o", made.weights)
    return in_folder(made)


def in_folder(made: Desk) -> Desk:
    """A folder with weights, files at several depths, a certificate, and one file of each format."""
    model = made.folder / "model"
    for place in (".", "notes", "notes-2/more"):
        (model / place).mkdir(parents=True, exist_ok=True)
        (model / place / "a.txt").write_text("text")
    (model / ".gitignore").write_text("*.part")
    made.weights.rename(model / "model.safetensors")
    made.folder, made.weights, made.certificate = model, model, model / "certificate.json"
    made.certify("trainer", "--for", ALL)
    return made


def file_of(desk: Desk, name: str) -> Path:
    return desk.folder / formats.FORMATS[name].file


def model_signing(desk: Desk, who: str = "trainer", root: Path | None = None) -> Tool:
    """`model_signing verify key FOLDER`, or `verify certificate` with a root."""
    key, signature, tool = desk.folder.parent / "key.pub", desk.folder.parent / "other.sig", verifying.Config()
    key.write_text(desk.command("key", desk.parties.path(f"{who}.pem"), "--public"))
    if root is None:
        tool.use_elliptic_key_verifier(public_key=key)
    else:
        tool.use_certificate_verifier(certificate_chain=[root])

    def accepted(data: bytes) -> bytes:
        signature.write_bytes(data)
        tool.verify(desk.folder, signature)
        return b64decode(json.loads(data)["dsseEnvelope"]["payload"])

    return accepted


def in_toto(desk: Desk, who: str = "trainer") -> Tool:
    """securesystemslib and in-toto's library, as one verifies a statement about the files of weights at hand."""
    key = attesting_key(load_key(desk.parties.path(f"{who}.pem"))).public_key()
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in desk.folder.glob("*.safetensors")}

    def accepted(data: bytes) -> bytes:
        envelope = OtherEnvelope.from_dict(json.loads(data))
        envelope.verify([SSlibKey.from_crypto(key, keyid=one) for one in envelope.signatures], 1)
        assert {one.name: one.digest["sha256"] for one in statement_of(envelope.payload).subject} == digests
        return bytes(envelope.payload)

    return accepted


# ---------------------------------------------------------------- the whole folder


def test_model_signing_verifies_the_whole_folder(desk: Desk) -> None:
    tool, path = model_signing(desk), file_of(desk, "model-signing")
    listed = {one["name"]: one for one in json.loads(tool(path.read_bytes()))["predicate"]["resources"]}
    owners = [*hashing.Config().set_ignored_paths(paths=[path.name]).hash(desk.folder).resource_descriptors()]
    assert [(name, one["digest"]) for name, one in listed.items()] == [
        (one.identifier, one.digest.digest_hex) for one in owners
    ]
    assert {"certificate.json", "README.md", "notes/a.txt", "notes-2/more/a.txt"} <= listed.keys()
    assert f" It covers {len(listed)} files.\n" in desk.verify(desk.folder)
    for name in listed:
        data = (desk.folder / name).read_bytes()
        (desk.folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        desk.verify(desk.folder, code=2)
        with pytest.raises(ValueError, match="Hash mismatch"):
            tool(path.read_bytes())
        (desk.folder / name).write_bytes(data)
    for extra in (desk.folder / "more.md", desk.folder / "link.md"):
        extra.symlink_to("a.txt") if extra.stem == "link" else extra.write_text("new")
        assert str(extra if extra.is_symlink() else path) in desk.verify(desk.folder, code=2)
        with pytest.raises(ValueError, match=r"Extra files|symlink"):
            tool(path.read_bytes())
        extra.unlink()
    desk.verify(desk.folder)


def test_certify_leaves_no_stale_signature_of_a_folder(desk: Desk) -> None:
    before = {path: path.read_bytes() for path in desk.folder.glob("*.*") if path.is_file()}
    for more in ([], ["--for", "hub"]):
        assert "add model-signing to --for" in desk.certify("client", *more, code=1)
    desk.certify("")
    assert {path: path.read_bytes() for path in before} == before
    desk.certify("client", "--for", "hub,model-signing")
    model_signing(desk, "client")(file_of(desk, "model-signing").read_bytes())
    desk.verify(desk.folder)


# ---------------------------------------------------------------- X.509


def test_a_chain_of_a_ca_stands_in_the_place_of_a_key(desk: Desk) -> None:
    """The owner's tool accepts it under this CA and no other; ours names whom it names, and judges no CA."""
    asked = desk.command("key", desk.parties.path("trainer.pem"), "--request")
    root, chain = chained(
        desk.folder.parent / "ca", x509.load_pem_x509_csr(asked.encode()).public_key(), "a@example.org\x1b[2J"
    )
    other_root, of_other_key = chained(desk.folder.parent / "cb", key_of("another").public_key())
    path = file_of(desk, "model-signing")
    before = path.read_bytes()
    for name, wrong, code in (("hub", chain, 1), ("model-signing", path, 1), ("model-signing", of_other_key, 2)):
        desk.certify("trainer", "--for", name, "--certificate-chain", wrong, code=code)
        assert path.read_bytes() == before
    desk.certify("trainer", "--for", "model-signing", "--certificate-chain", chain)
    model_signing(desk, root=root)(path.read_bytes())
    with pytest.raises(Exception, match="unable to get"):
        model_signing(desk, root=other_root)(path.read_bytes())
    assert r"the X.509 identity 'a@example.org\x1b[2J', which nothing here checks." in desk.verify(desk.folder)
    bundle = json.loads(path.read_bytes())
    del bundle["verificationMaterial"]["x509CertificateChain"]["certificates"][1]
    path.write_text(json.dumps(bundle) + "\n")
    assert str(path) in desk.verify(desk.folder, code=2)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_no_hostile_certificate_raises_anything_unexpected(tmp_path: Path, cases: Callable[[int], None]) -> None:
    """The digest of a chain says nothing of one that its signer prepared."""
    key = key_of("signer").public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    leaf, *_ = read_chain(chained(tmp_path / "ca", key)[1])
    assert identity([leaf], pem) == "'a@example.org'"
    for at in range(8 * len(leaf)):
        flipped = bytearray(leaf)
        flipped[at // 8] ^= 1 << at % 8
        with suppress(SignatureError):
            identity([bytes(flipped)], pem)
    cases(8 * len(leaf))


def test_sigstore_verifies_it_offline_with_an_entry_of_a_log(desk: Desk, tmp_path: Path) -> None:
    key = attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    root, chain = chained(tmp_path / "ca", key)
    desk.certify("trainer", "--for", "model-signing", "--certificate-chain", chain)
    signature, (leaf, _) = file_of(desk, "model-signing").read_bytes(), chain.read_bytes().split(b"-----BEGIN")[1:]
    bundle = runpy.run_path(str(ROOT / "examples" / "sigstore_bundle.py"))["bundle"]
    made = bundle(signature, logged(signature, b"-----BEGIN" + leaf))
    path, config = tmp_path / "model.sigstore.json", tmp_path / "trust.json"
    for roots, data, refusal in (
        ((root, chain), made, None),
        (chained(tmp_path / "cb", key), made, "certificate chain"),
        ((root, chain), made.replace(b'"treeSize": "1"', b'"treeSize": "2"'), "invalid log entry"),
        ((root, chain), bundle(signature, logged(signature, b"another key")), "log entry signatures"),
    ):
        path.write_bytes(data)
        config.write_text(json.dumps(trust(*roots)))
        tool = verifying.Config().use_sigstore_verifier(
            identity="a@example.org", oidc_issuer=ISSUER, trust_config=config
        )
        with nullcontext() if refusal is None else pytest.raises(Exception, match=refusal):
            tool.verify(desk.folder, path)


# ---------------------------------------------------------------- in-toto


def test_a_training_run_has_what_the_certificate_says(desk: Desk) -> None:
    signed = certificate_of(desk)["predicate"]
    job = signed["job"]
    found = json_format.MessageToDict(statement_of(in_toto(desk)(file_of(desk, "in-toto").read_bytes())).predicate)
    roots = {one["name"]: one["digest"]["tiebreakRoot"] for one in found["inputs"]}
    assert roots == {name: job[name] for name in ("program", "data", "firstState")}
    assert found["finalState"]["digest"]["tiebreakRoot"] == signed["finalState"]["root"]
    assert found["job"] == {"id": job["id"], "steps": job["steps"]}
    assert found["arithmetic"] == {"policy": job["policy"], "precision": job["precision"], "replay": "same_bytes"}


def test_the_predicates_example_is_what_a_trainer_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, page, key = ROOT / "tests" / "compatibility" / "2026-11-29", ROOT / "docs" / "predicate.md", tmp_path / "key"
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    shutil.copy(files / "trainer.pem", key)
    key.chmod(0o600)
    signed = read_certificate(files / "certificate.json")
    source = FormatSource(signed=signed, certificate="certificate.json", folder=files, key=load_key(key))
    payload = Envelope.decode(formats.FORMATS["in-toto"].make(source)).payload.data
    (shown,) = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    assert json.loads(payload) == json.loads(shown)
    assert f"Type URI: `{statement_of(payload).predicate_type}`" in page.read_text()


def test_reproduced_needs_an_auditors_signature_and_a_later_one_spoils_no_file(desk: Desk, tmp_path: Path) -> None:
    path, certificate = file_of(desk, "in-toto"), desk.certificate.read_bytes()
    old = path.read_bytes()
    assert desk.parties.audit(desk.run, tmp_path / "replay") == 0
    desk.certify("stranger", "--for", "in-toto,model-signing", folder=tmp_path / "replay")
    file_of(desk, "model-signing").unlink()
    signers = json.loads(in_toto(desk, "stranger")(path.read_bytes()))["predicate"]["signers"]
    assert signers[1:] == [{"id": desk.parties.address("stranger"), "role": "auditor"}]
    assert "signed the certificate too. Its level is reproduced.\n" in desk.verify(desk.folder)
    path.write_bytes(old)
    assert "signed the certificate too. Its level is self_attested.\n" in desk.verify(desk.folder)
    desk.certificate.write_bytes(certificate)
    payload = Payload(kind=PAYLOAD_TYPE, data=in_toto(desk)(old).replace(b"self_attested", b"reproduced"))
    trainer = load_key(desk.parties.path("trainer.pem"))
    path.write_bytes(signed_for_others(Envelope(payload=payload), trainer).encode())
    in_toto(desk)(path.read_bytes())
    assert f"{path}: expected what this certificate makes of it" in desk.verify(desk.folder, code=2)


# ---------------------------------------------------------------- hostile files


def rebuilt(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """The file with another payload, other signatures or other keys, many of them from another run's file."""
    top, second = json.loads(data), json.loads(other)
    at, second_at = (one.get("dsseEnvelope", one) for one in (top, second))
    (own, *_), (others, *_) = at["signatures"], second_at["signatures"]
    (payload,) = mutants(b64decode(at["payload"]), b64decode(second_at["payload"]), 1, draw)
    lists = [[], [others], [own, others], [others, own], [own, own], [own | {"keyid": ""}], [own | {"keyid": "\u202e"}]]
    changed = draw.choice([
        {"payload": b64encode(payload).decode()}, {"payload": second_at["payload"]}, {"signatures": draw.choice(lists)},
        second_at, {"payloadType": draw.choice(["", "text/plain", None])}, {draw.choice([*at]): None},
    ])  # fmt: skip
    if "dsseEnvelope" not in top:
        return json.dumps(top | changed).encode() + b"\n"
    material = top["verificationMaterial"]
    around = [{}, {"mediaType": "x"}, {"verificationMaterial": {}}, {"verificationMaterial": material | {"x": 1}}]
    around += [{"verificationMaterial": second["verificationMaterial"]}, {"tlogEntries": [{}]}]
    return json.dumps(top | {"dsseEnvelope": at | changed} | draw.choice(around)).encode() + b"\n"


def refuse_mutants(desk: Desk, other: Desk, count: int, cases: Callable[[int], None]) -> None:
    """We accept no mutant. Where we refuse, the owner's tool refuses too, or reads the same signed statement.

    Such tools pass over spaces, names of keys, further signatures, and certificates that they do not need.
    """
    draw, key = random.Random(2), attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    root, chain = chained(desk.folder.parent / "ca", key)
    source = FormatSource(signed=read_certificate(desk.certificate), certificate="certificate.json", folder=desk.folder)
    tools = [("slsa", in_toto(desk)), ("in-toto", in_toto(desk)), ("model-signing", model_signing(desk))]
    files = [(*one, *(file_of(of, one[0]).read_bytes() for of in (desk, other))) for one in tools]
    for of in (desk, other):
        of.certify("trainer", "--for", "model-signing", "--certificate-chain", chain)
    chains = (file_of(of, "model-signing").read_bytes() for of in (desk, other))
    files.append(("model-signing", model_signing(desk, root=root), *chains))
    for name, tool, data, second in files:
        again, accepted, passed = formats.FORMATS[name].again, tool(data), 0
        assert again(source, data) == data
        for number, mutant in enumerate(mutants(data, second, count, draw)):
            one = rebuilt(data, second, draw) if number % 2 else mutant
            if one == data:
                continue
            with suppress(VerificationError):
                assert again(source, one) != one, (name, one)
            with suppress(Exception):
                found = tool(one)
                passed += 1
                pytest.fail(f"{name}: {one!r}") if found != accepted else None
        cases(count)
        assert 0 < passed < count / 5


def test_no_mutant_of_a_signed_format_is_accepted(desk: Desk, other: Desk, cases: Callable[[int], None]) -> None:
    refuse_mutants(desk, other, 250, cases)


@pytest.mark.nightly
def test_no_mutant_of_ten_thousand_of_a_signed_format_is_accepted(
    desk: Desk, other: Desk, cases: Callable[[int], None]
) -> None:
    refuse_mutants(desk, other, 10_000, cases)
