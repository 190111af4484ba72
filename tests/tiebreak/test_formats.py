"""What `tiebreak certify --for` writes, and what `tiebreak verify` makes of such files."""

import json
import random
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from google.protobuf import json_format
from huggingface_hub import ModelCard
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from model_signing.verifying import Config
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.signer import SSlibKey

from tests.tiebreak.parties import Commands, Parties
from tests.tiebreak.test_certificates import Desk, certificate_of, statement_of
from tiebreak import open_run
from tiebreak.api.certification.certificates import read_certificate
from tiebreak.api.provenance import formats
from tiebreak.api.provenance.about import About
from tiebreak.api.provenance.cards import BEGIN, END
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.signing.attesting import attesting_key
from tiebreak.cli.key import load_key
from tiebreak.protocol.commitments.computation_receipts import (
    canonical,
    collection_digest,
    digest,
    manifest_of,
    profile_of,
    tensor_digest,
    verdict,
)  # fmt: skip
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.rounding import Policy

ALL: Final = "hub,slsa,in-toto,model-signing,receipt,dossier,cyclonedx,spdx"
VECTORS: Final = Path(__file__).parents[3] / "shared" / "receipts" / "CR-v0.1-conformance-vectors.json"


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    """A certificate with one file of each format beside it."""
    made = Desk(parties, tmp_path, command)
    made.certify("trainer", "--for", ALL)
    return made


def files(desk: Desk) -> dict[str, Path]:
    return {name: desk.folder / kind.file for name, kind in formats.FORMATS.items()}


def test_verify_names_each_format_and_a_later_signer_changes_none(desk: Desk) -> None:
    desk.certify("client")
    told = desk.verify(desk.weights)
    assert [name for name in files(desk) if f" ({name}) is what this certificate makes of it," not in told] == []
    desk.certify("client", "--for", "hub")
    card = files(desk)["hub"].read_text()
    assert all(f"--require {desk.parties.address(who)}" in card for who in ("trainer", "client"))
    assert card.count(BEGIN) == 1, "the section is replaced"
    desk.verify(desk.weights)
    desk.certify("client", "--for", "slsa", code=1)
    desk.certify("", "--for", "model-signing", code=1)
    desk.certify("trainer", "--for", "pickle", code=1)


def test_a_card_keeps_its_authors_words_and_the_hub_reads_its_header(desk: Desk) -> None:
    """Hugging Face's own library reads it without a network."""
    path = files(desk)["hub"]
    path.write_text('---\nlicense: "a\\nb"\ndatasets:\n- org/data\nbase_model: org/model\n---\n# Mine\n')
    desk.certify("client", "--for", "hub")
    card = ModelCard(path.read_text())
    assert card.data.to_dict() == {"license": "a\nb", "datasets": ["org/data"], "base_model": "org/model"}
    assert card.text.strip().startswith(BEGIN)
    assert card.text.strip().endswith("# Mine")
    desk.verify(desk.weights)
    path.write_text("# Nothing of Tiebreak's\n")
    assert "(hub)" not in desk.verify(desk.weights)


@pytest.mark.parametrize("name", ["]]><script>", "a\nlicense: mit", 'x"y', "../model", "org/" + "m" * 97, ""])
def test_hostile_names_of_bases_and_certificates_are_no_part_of_a_card(desk: Desk, name: str) -> None:
    (desk.folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    desk.certify("client", "--for", "hub")
    assert ModelCard(files(desk)["hub"].read_text()).data.to_dict() == {}
    desk.certificate = desk.folder / "](x) certificate.json"
    desk.certify("trainer", "--for", "hub", code=1)


def test_slsa_provenance_is_read_by_in_totos_library(desk: Desk) -> None:
    envelope = OtherEnvelope.from_dict(json.loads(files(desk)["slsa"].read_text()))
    public = attesting_key(load_key(desk.parties.path("trainer.pem"))).public_key()
    envelope.verify([SSlibKey.from_crypto(public, keyid=next(iter(envelope.signatures)))], 1)
    statement = statement_of(envelope.payload)
    assert statement.predicate_type == "https://slsa.dev/provenance/v1"
    found = json_format.ParseDict(json_format.MessageToDict(statement.predicate), Provenance())
    signed = certificate_of(desk)
    definition, details = found.build_definition, found.run_details
    job = signed["predicate"]["job"]
    assert definition.build_type == "urn:tiebreak:job:1"
    assert json_format.MessageToDict(definition.external_parameters)["job"] == job
    assert {one.name: dict(one.digest) for one in definition.resolved_dependencies} == {
        name: {"tiebreakRoot": job[name]} for name in ("program", "data", "firstState")
    }
    assert details.builder.id == f"urn:tiebreak:trainer:{desk.parties.address('trainer')}"
    assert details.metadata.invocation_id == job["id"]
    assert not details.metadata.HasField("finished_on"), "nobody proves when"
    assert details.byproducts[0].digest["tiebreakRoot"] == open_run(desk.run).root
    assert [dict(one.digest) for one in statement.subject] == [one["digest"] for one in signed["subject"]]


def test_a_model_signature_of_one_file_covers_no_other(desk: Desk) -> None:
    path, public = files(desk)["model-signing"], desk.folder / "trainer.pub"
    public.write_text(desk.command("key", desk.parties.path("trainer.pem"), "--public"))
    tool = Config().use_elliptic_key_verifier(public_key=public).set_ignore_unsigned_files(True)
    tool.verify(desk.folder, path)
    assert " It covers 1 file.\n" in desk.verify(desk.weights)
    desk.certify("client", "--for", "hub")


# ---------------------------------------------------------------- receipts


def test_a_receipt_binds_what_decides_the_final_state(desk: Desk) -> None:
    own, job = files(desk)["receipt"].read_bytes(), certificate_of(desk)["predicate"]["job"]
    manifest = manifest_of(own)
    assert verdict(own, own) == "ACCEPT"
    assert manifest["computation"]["id"] == f"urn:tiebreak:program:{job['program']}:{job['steps']}"
    first = tensor_digest("u1", [32], bytes.fromhex(job["firstState"]))
    assert manifest["model"]["digest"] == collection_digest({"firstState": first})
    assert manifest["arithmetic"]["profile"] == "ieee754-f32-rn"
    manifest["output"]["digest"] = first
    assert verdict(receipt(manifest), own) == "REJECT"
    manifest["arithmetic"]["profile"] = profile_of(32, logged=True)
    assert verdict(receipt(manifest), own) == "MALFORMED", "no such arithmetic claims this"
    manifest["arithmetic"] |= {"accumulation": "rounded", "order_independent": False}
    assert verdict(receipt(manifest), receipt(manifest)) == "UNVERIFIABLE"


def test_a_run_of_policy_logged_is_unverifiable(desk: Desk) -> None:
    signed = read_certificate(desk.certificate)
    agreement = replace(signed.certificate.agreement, job=replace(signed.certificate.job, policy=int(Policy.LOGGED)))
    logged = replace(signed, certificate=replace(signed.certificate, agreement=agreement))
    source = FormatSource(signed=logged, certificate="certificate.json", folder=desk.folder)
    own = formats.FORMATS["receipt"].make(source)
    assert verdict(own, own) == "UNVERIFIABLE"
    assert formats.FORMATS["receipt"].again(source, own) == own
    key = load_key(desk.parties.path("trainer.pem"))
    audited = replace(source, signed=replace(logged, signers=[*logged.signers, Address(bytes(20))]), key=key)
    made = json.loads(formats.FORMATS["in-toto"].make(audited))
    predicate = json.loads(b64decode(made["payload"]))["predicate"]
    assert (predicate["arithmetic"]["replay"], predicate["signers"][1]["role"]) == ("unverifiable", "auditor")
    assert predicate["assuranceLevel"] == "self_attested", "its replay had the trainer's log"
    assert [line for line in logged.leaves_open() if line.startswith("Unverifiable: ")] != []
    assert [line for line in signed.leaves_open() if line.startswith("Unverifiable: ")] == []


def receipt(manifest: Any, **more: Any) -> bytes:
    return canonical({"manifest": manifest, "certificate": digest(canonical(manifest)), **more})


def sampled(manifest: Any) -> list[int]:
    """The units of a sampled receipt, by section 10 of the specification."""
    base = {name: part for name, part in manifest.items() if name != "sample"}
    units, found, counter = manifest["sample"]["n_units"], list[int](), 0
    seed = sha256(canonical(base) + bytes.fromhex(manifest["sample"]["challenge"])).digest()
    while len(found) < manifest["sample"]["size"]:
        drawn = int.from_bytes(sha256(seed + counter.to_bytes(8, "big")).digest()[:8], "big")
        if drawn < (1 << 64) // units * units and drawn % units not in found:
            found.append(drawn % units)
        counter += 1
    return sorted(found)


@pytest.mark.skipif(not VECTORS.is_file(), reason="needs the vectors of Computation Receipts")
def test_all_conformance_vectors_of_computation_receipts(cases: Callable[[], None]) -> None:
    def of(array: Any) -> str:
        return tensor_digest(array.dtype.str[1:], list(array.shape), array.tobytes())

    a, b = np.arange(6, dtype="<f8").reshape(2, 3), np.arange(4, dtype="<i4")
    digests = {
        "tensor/float64-2x3": of(a), "tensor/int32-4": of(b), "tensor/int8-6": of(np.arange(-3, 3, dtype="i1")),
        "tensors/named-order-independent": collection_digest({"w2": of(b), "w1": of(a)}),
    }  # fmt: skip
    refused = 0
    for vector in json.loads(VECTORS.read_text()):
        cases()
        if "input" in vector:
            assert canonical(vector["input"]).decode() == vector["canonical"]
        if "digest" in vector:
            made = digest(canonical(vector["input"])) if "input" in vector else digests[vector["name"]]
            assert made == vector["digest"], vector["name"]
        if "certificate" not in vector:
            continue
        manifest = json.loads(vector["manifest_canonical"])
        assert canonical(manifest).decode() == vector["manifest_canonical"]
        claimed = receipt(manifest, meta={})
        assert json.loads(claimed)["certificate"] == vector["certificate"]
        assert verdict(claimed, claimed) == vector.get("expect_verdict", "ACCEPT"), vector["name"]
        refused += "expect_verdict" in vector
        if "sample_indices" in vector:
            assert sampled(manifest) == vector["sample_indices"]
        if vector["name"] == "receipt/chunk-0":
            assert digest(canonical({"certificate": vector["certificate"]})) == vector["chain_digest"]
    assert refused == 5


# ---------------------------------------------------------------- hostile files


def mutants(data: bytes, other: bytes, count: int, draw: random.Random) -> Iterator[bytes]:
    """Other files than this one: other bytes, numbers and text, repeated names, parts of another file or none."""
    spans = [match.span() for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|\d+|[0-9a-f]{8,}', data)]
    others = [other[slice(*match.span())] for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|\d+', other)]
    made = 0
    while made < count:
        first, end = draw.choice(spans)
        at = draw.randrange(len(data))
        one = draw.choice([
            data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
            data[:at] + data[at + 1 :], data[:at], data[:at] + draw.choice([b" ", b"\n", b"\\u0030"]) + data[at:],
            data[:first] + draw.choice(others) + data[end:], data[:first] + data[end:],
            data[:first] + draw.choice([b"0", b"-1", b"1e9", b"null", b"true", b"[]", b"{}", b'""']) + data[end:],
            data[:end] + draw.choice([b"0", "\u00e9\u202e".encode(), b"\xff"]) + data[end:],
            data.replace(b"{", b'{"subject": [], ', 1), data + data,
            re.sub(rb'"signatures": \[.*?\]', b'"signatures": []', data, count=1),
        ])  # fmt: skip
        if one != data:
            made += 1
            yield one


def refuse_mutants(desk: Desk, count: int, cases: Callable[[int], None]) -> None:
    signed, draw = read_certificate(desk.certificate), random.Random(1)
    source = FormatSource(signed=signed, certificate=desk.certificate.name, folder=desk.folder)
    texts = {name: path.read_bytes() for name, path in files(desk).items()}
    job = replace(signed.certificate.job, data_root=signed.certificate.job.program_root, steps=8)
    agreement = replace(signed.certificate.agreement, job=job)
    other = replace(source, signed=replace(signed, certificate=replace(signed.certificate, agreement=agreement)))
    for name, kind in formats.FORMATS.items():
        around = [b"", b""]
        if name == "hub":  # what stands around the section is its author's
            begin, end = (texts[name].index(mark.encode()) for mark in (BEGIN, END))
            around, texts[name] = (
                [texts[name][:begin], texts[name][end:]],
                texts[name][begin + len(BEGIN) : end],
            )
            around[0] += BEGIN.encode()
        elif kind.asks:
            texts[name] = kind.make(replace(source, about=About(answers={"name": "A", "tags": ["x"], "contact": "y"})))
        assert kind.again(source, around[0] + texts[name] + around[1]) == around[0] + texts[name] + around[1]
        parts = kind.make(other) if kind.signer == "nobody" else b""  # of another run
        for mutant in mutants(texts[name], texts["slsa"] + parts, count, draw):
            data = around[0] + mutant + around[1]
            with suppress(VerificationError):
                assert kind.again(source, data) != data, (name, data)
        cases(count)


def test_no_mutant_of_a_format_is_accepted(desk: Desk, cases: Callable[[int], None]) -> None:
    refuse_mutants(desk, 250, cases)
    for path in files(desk).values():
        data = path.read_bytes()
        path.write_bytes(data.replace(b"0", b"1", 1) if path.suffix != ".md" else data.replace(b"Job", b"job"))
        assert str(path) in desk.verify(desk.weights, code=2)
        path.write_bytes(data)
    desk.verify(desk.weights)


@pytest.mark.nightly
def test_no_mutant_of_ten_thousand_of_a_format_is_accepted(desk: Desk, cases: Callable[[int], None]) -> None:
    refuse_mutants(desk, 10_000, cases)


def test_a_key_that_signed_another_certificate_signs_no_model(desk: Desk) -> None:
    """Whoever can write beside the weights can list the id of a key under the certificate, with any signature."""
    stranger = load_key(desk.parties.path("stranger.pem"))
    forged = formats.FORMATS["model-signing"].make(
        FormatSource(signed=read_certificate(desk.certificate), certificate="c", folder=desk.folder, key=stranger)
    )
    files(desk)["model-signing"].write_bytes(forged)
    key_id = json.loads(forged)["dsseEnvelope"]["signatures"][0]["keyid"]
    envelope = read_certificate(desk.certificate).envelope
    desk.certificate.write_bytes(envelope.signed(key_id, envelope.signatures[-1][1]).encode())
    assert "a P-256 key that signed the certificate, got none" in desk.verify(desk.weights, code=2)


def test_a_card_of_many_beginnings_is_refused_at_once(desk: Desk) -> None:
    files(desk)["hub"].write_text(f"{BEGIN}\n" * 200_000)
    assert "expected one section" in desk.verify(desk.weights, code=2)
