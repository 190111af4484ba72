"""Signed files of `tiebreak certify --for`, checked by us and by their owners' own tools."""

import json
import random
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf import json_format
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.signer import SSlibKey

from tests.tiebreak.parties import PASSPHRASE, Commands, Parties
from tests.tiebreak.test_certificates import Desk, certificate_of, statement_of
from tests.tiebreak.test_formats import ALL, mutants
from tiebreak.api.certification.certificates import read_certificate
from tiebreak.api.provenance import formats
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.signing.attesting import attesting_key, signed_for_others
from tiebreak.cli.key import load_key
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import PAYLOAD_TYPE
from tiebreak.protocol.errors import VerificationError

verifying = pytest.importorskip("model_signing.verifying")
hashing = pytest.importorskip("model_signing.hashing")

ROOT: Final = Path(__file__).parents[2]
SIGNED: Final = ("slsa", "in-toto", "model-signing")
Tool = Callable[[bytes], bytes]
"""The owner's tool: the payload that it accepts in a file. Raises whatever it does for others."""


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    return in_folder(Desk(parties, tmp_path, command))


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


def public(desk: Desk, who: str) -> Path:
    path = desk.folder.parent / f"{who}.pub"
    path.write_text(desk.command("key", desk.parties.path(f"{who}.pem"), "--public"))
    return path


def model_signing(desk: Desk, who: str = "trainer", root: Path | None = None) -> Tool:
    """`model_signing verify key FOLDER`, or `verify certificate` with a root."""
    signature, configured = desk.folder.parent / "other.sig", verifying.Config()
    if root is None:
        configured.use_elliptic_key_verifier(public_key=public(desk, who))
    else:
        configured.use_certificate_verifier(certificate_chain=[root])

    def accepted(data: bytes) -> bytes:
        signature.write_bytes(data)
        configured.verify(desk.folder, signature)
        return b64decode(json.loads(data)["dsseEnvelope"]["payload"])

    return accepted


def in_toto(desk: Desk, who: str = "trainer") -> Tool:
    """securesystemslib and in-toto's library, as one verifies a statement about the files of weights at hand."""
    key = attesting_key(load_key(desk.parties.path(f"{who}.pem"))).public_key()
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in desk.folder.glob("*.safetensors")}

    def accepted(data: bytes) -> bytes:
        envelope = OtherEnvelope.from_dict(json.loads(data))
        envelope.verify([SSlibKey.from_crypto(key, keyid=one) for one in envelope.signatures], 1)
        found = {one.name: one.digest["sha256"] for one in statement_of(envelope.payload).subject}
        assert found == digests
        return bytes(envelope.payload)

    return accepted


# ---------------------------------------------------------------- the whole folder


def test_model_signing_verifies_the_whole_folder(desk: Desk) -> None:
    tool, path = model_signing(desk), file_of(desk, "model-signing")
    document = json.loads(tool(path.read_bytes()))
    owners = hashing.Config().set_ignored_paths(paths=[path.name]).hash(desk.folder)
    listed = document["predicate"]["resources"]
    assert [(one["name"], one["digest"]) for one in listed] == [
        (one.identifier, one.digest.digest_hex) for one in owners.resource_descriptors()
    ]
    assert {one["name"] for one in listed} >= {"certificate.json", "README.md", "notes/a.txt", "notes-2/more/a.txt"}
    assert f" It covers {len(listed)} files.\n" in desk.verify(desk.folder)
    for name in (one["name"] for one in listed):
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


def issued(name: str, key: Any, issuer: x509.Name, by: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
    """A certificate for a key; one that is no CA's is as Fulcio issues them, for ten minutes and an address."""
    start, subject = datetime(2026, 1, 1, tzinfo=UTC), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    usage = dict.fromkeys(
        ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only", "crl_sign"], False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder(serial_number=1, issuer_name=issuer, subject_name=subject if ca else x509.Name([]))
        .public_key(key).not_valid_before(start).not_valid_after(start + timedelta(minutes=10))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, **usage), critical=True)
    )  # fmt: skip
    if not ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.RFC822Name(name)]), critical=True)
    return builder.sign(by, hashes.SHA256())


def chained(desk: Desk, key: Any, folder: Path, name: str = "a@example.org") -> tuple[Path, Path]:
    """(a root of its own, a leaf for a key with the intermediate above it), as PEM files."""
    seeds = [sha256(f"{folder.name} {number}".encode()).digest()[:16] for number in range(2)]
    keys = [ec.derive_private_key(int.from_bytes(seed, "big"), ec.SECP256R1()) for seed in seeds]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{folder.name} {one}")]) for one in range(2)]
    root = issued(f"{folder.name} 0", keys[0].public_key(), names[0], keys[0], ca=True)
    middle = issued(f"{folder.name} 1", keys[1].public_key(), names[0], keys[0], ca=True)
    leaf = issued(name, key, names[1], keys[1], ca=False)
    folder.mkdir()
    (folder / "root.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "chain.pem").write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in (leaf, middle)))
    return folder / "root.pem", folder / "chain.pem"


def test_a_chain_of_a_ca_stands_in_the_place_of_a_key(desk: Desk) -> None:
    """The owner's tool accepts it under this CA and no other; ours under none, and says so."""
    key = attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    root, chain = chained(desk, key, desk.folder.parent / "ca", "a@example.org\x1b[2J")
    other_root, wrong = chained(desk, ec.derive_private_key(5, ec.SECP256R1()).public_key(), desk.folder.parent / "cb")
    path = file_of(desk, "model-signing")
    desk.certify("trainer", "--for", "hub", "--certificate-chain", chain, code=1)
    for bad in (wrong, public(desk, "trainer"), desk.folder / "model.safetensors"):
        before = path.read_bytes()
        desk.certify("trainer", "--for", "model-signing", "--certificate-chain", bad, code=1 if bad != wrong else 2)
        assert path.read_bytes() == before
    desk.certify("trainer", "--for", "model-signing", "--certificate-chain", chain)
    model_signing(desk, root=root)(path.read_bytes())
    with pytest.raises(Exception, match="unable to get"):
        model_signing(desk, root=other_root)(path.read_bytes())
    told = desk.verify(desk.folder)
    assert r"the X.509 identity 'a@example.org\x1b[2J', which nothing here checks." in told
    bundle = json.loads(path.read_bytes())
    del bundle["verificationMaterial"]["x509CertificateChain"]["certificates"][1]
    path.write_text(json.dumps(bundle) + "\n")
    assert str(path) in desk.verify(desk.folder, code=2)


# ---------------------------------------------------------------- in-toto


def test_a_training_run_is_read_by_in_totos_library(desk: Desk, tmp_path: Path) -> None:
    path = file_of(desk, "in-toto")
    payload, signed = in_toto(desk)(path.read_bytes()), certificate_of(desk)
    statement, job = statement_of(payload), signed["predicate"]["job"]
    assert statement.predicate_type == "urn:tiebreak:training-run:1"
    predicate = json_format.MessageToDict(statement.predicate)
    assert {one["name"]: one["digest"] for one in predicate["inputs"]} == {
        name: {"tiebreakRoot": job[name]} for name in ("program", "data", "firstState")
    }
    assert predicate["finalState"]["digest"] == {"tiebreakRoot": signed["predicate"]["finalState"]["root"]}
    assert predicate["job"] == {"id": job["id"], "steps": job["steps"]}
    assert predicate["arithmetic"] == {"policy": job["policy"], "precision": job["precision"], "replay": "same_bytes"}
    assert predicate["signers"] == [{"id": job["trainer"], "role": "trainer"}]
    command = predicate["verification"]["command"].split()
    assert command[:4] == ["tiebreak", "verify", ".", predicate["certificate"]["name"]]
    assert f"Its level is {predicate['assuranceLevel']}." in desk.verify(desk.folder)


def test_the_predicates_example_is_what_a_trainer_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, page = ROOT / "tests" / "compatibility" / "2026-11-29", ROOT / "docs" / "predicate.md"
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    shutil.copy(files / "trainer.pem", tmp_path / "trainer.pem")
    (tmp_path / "trainer.pem").chmod(0o600)
    source = FormatSource(
        signed=read_certificate(files / "certificate.json"), certificate="certificate.json", folder=files,
        key=load_key(tmp_path / "trainer.pem"),
    )  # fmt: skip
    payload = Envelope.decode(formats.FORMATS["in-toto"].make(source)).payload.data
    (shown,) = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    assert json.loads(payload) == json.loads(shown)
    assert f"`{statement_of(payload).predicate_type}`" in page.read_text()


def test_reproduced_needs_an_auditors_signature_and_a_later_one_spoils_no_file(desk: Desk, tmp_path: Path) -> None:
    path, trainer = file_of(desk, "in-toto"), load_key(desk.parties.path("trainer.pem"))
    old, certificate = path.read_bytes(), desk.certificate.read_bytes()
    assert desk.parties.audit(desk.run, tmp_path / "replay") == 0
    desk.certify("stranger", "--for", "in-toto,model-signing", folder=tmp_path / "replay")
    file_of(desk, "model-signing").unlink()
    reproduced = json.loads(in_toto(desk, "stranger")(path.read_bytes()))["predicate"]
    assert reproduced["signers"][1:] == [{"id": desk.parties.address("stranger"), "role": "auditor"}]
    assert "signed the certificate too. Its level is reproduced.\n" in desk.verify(desk.folder)
    path.write_bytes(old)
    assert "signed the certificate too. Its level is self_attested.\n" in desk.verify(desk.folder)
    desk.certificate.write_bytes(certificate)
    payload = Payload(kind=PAYLOAD_TYPE, data=in_toto(desk)(old).replace(b"self_attested", b"reproduced"))
    path.write_bytes(signed_for_others(Envelope(payload=payload), trainer).encode())
    in_toto(desk)(path.read_bytes())
    assert f"{path}: expected what this certificate makes of it" in desk.verify(desk.folder, code=2)


# ---------------------------------------------------------------- hostile files


def rebuilt(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """The file with another payload, other signatures or other keys, some of them from another run's file."""
    top, second = json.loads(data), json.loads(other)
    at, second_at = (one.get("dsseEnvelope", one) for one in (top, second))
    (own, *_), (others, *_) = at["signatures"], second_at["signatures"]
    kind = draw.randrange(8)
    if kind == 0:
        at["payload"] = second_at["payload"]
    elif kind == 1:
        at["signatures"] = draw.choice([[], [others], [own, others], [own, own], [others, own], [own | {"keyid": ""}]])
    elif kind == 2:
        at["signatures"][0] = draw.choice([own, others]) | {"keyid": draw.choice(["x", "\u202e", others["keyid"]])}
    elif kind == 3:
        part = draw.choice(["payloadType", "payload", "signatures", *top])
        (at if part in at else top).pop(part)
    elif kind == 4 and "verificationMaterial" in top:
        material = draw.choice([top, second])["verificationMaterial"]
        top["verificationMaterial"] = draw.choice([{}, material | {"tlogEntries": [{}]}, material | {"x": 1}])
        top |= draw.choice([{}, {"mediaType": "x"}, {"verificationMaterial": second["verificationMaterial"]}])
    elif kind == 5:
        return other
    else:
        (payload,) = mutants(b64decode(at["payload"]), b64decode(second_at["payload"]), 1, draw)
        at["payload"] = b64encode(payload).decode()
    return json.dumps(top).encode() + b"\n"


def refuse_mutants(desk: Desk, other: Desk, count: int, cases: Callable[[int], None]) -> None:
    """No mutant is accepted by us; none that we refuse by its owner's tool, but for what says and signs the same."""
    draw, key = random.Random(2), attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    root, chain = chained(desk, key, desk.folder.parent / "ca")
    source = FormatSource(signed=read_certificate(desk.certificate), certificate="certificate.json", folder=desk.folder)
    files = [(name, file_of(desk, name).read_bytes(), file_of(other, name).read_bytes()) for name in SIGNED]
    for one in (desk, other):
        one.certify("trainer", "--for", "model-signing", "--certificate-chain", chain)
    files.append(("model-signing", *(file_of(one, "model-signing").read_bytes() for one in (desk, other))))
    for number, (name, data, second) in enumerate(files):
        tool = in_toto(desk) if name != "model-signing" else model_signing(desk, root=root if number == 3 else None)
        again, accepted = formats.FORMATS[name].again, tool(data)
        assert again(source, data) == data
        for n, mutant in enumerate(mutants(data, second, count, draw)):
            one = rebuilt(data, second, draw) if n % 2 else mutant
            if one == data:
                continue
            with suppress(VerificationError):
                assert again(source, one) != one, (name, one)
            try:
                found = tool(one)
            except Exception:
                continue
            assert found == accepted, (name, one)
        cases(count)


@pytest.fixture
def other(desk: Desk, tmp_path: Path, command: Commands) -> Desk:
    """Another run of the same job, by the same trainer."""
    (tmp_path / "other").mkdir()
    made = Desk(desk.parties, tmp_path / "other", command)
    made.run = desk.parties.cheating(tmp_path / "other" / "run", 5)
    made.weights.unlink()
    command("weights", made.run, "-o", made.weights)
    return in_folder(made)


def test_no_mutant_of_a_signed_format_is_accepted(desk: Desk, other: Desk, cases: Callable[[int], None]) -> None:
    refuse_mutants(desk, other, 250, cases)


@pytest.mark.slow
def test_no_mutant_of_ten_thousand_of_a_signed_format_is_accepted(
    desk: Desk, other: Desk, cases: Callable[[int], None]
) -> None:
    refuse_mutants(desk, other, 10_000, cases)
