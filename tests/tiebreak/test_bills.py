"""Bills of materials that `tiebreak certify --for` writes, read and judged by the libraries of their owners."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from spdx_python_model import v3_0_1 as model

from tests.tiebreak.parties import Commands, Once, Parties
from tests.tiebreak.test_adapters import make, perceptron
from tests.tiebreak.test_certificates import Desk
from tiebreak.api.certification.certificates import read_certificate
from tiebreak.api.provenance import bills
from tiebreak.api.provenance.about import FIELDS, About
from tiebreak.api.provenance.formats import FORMATS
from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.errors import VerificationError

ANSWERS: dict[str, str | list[str]] = {
    name: [f"{name}-1", f"{name}-2"] if field.many else f"a-{name}" for name, field in FIELDS.items()
} | {"license": "apache-2.0"}
HOSTILE: dict[str, str | list[str]] = {
    "name": "@id", "version": "x" * 1025, "provider": "_:CreationInfo0", "purpose": "]]><script>alert(1)</script>",
    "limits": '"}], "@graph": [{"@type": "x', "tags": ["@type", "\U0001f600 \\u0022"], "license": "llama3.1",
    "data_source": "urn:uuid:", "base_model": "a..-b", "datasets": ["_x"],
}  # fmt: skip
DECLARED = [{}, ANSWERS, HOSTILE]


@pytest.fixture(params=["model", "adapter"])
def source(
    request: pytest.FixtureRequest, once: Once, parties: Parties, tmp_path: Path, command: Commands
) -> FormatSource:
    """A certificate of one file of weights, or of the folder of an adapter."""
    if request.param == "adapter":
        made = once("adapted", lambda folder: make(folder, perceptron()))
        folder, certificate = made / "adapter", made / "certificate.json"
    else:
        desk = Desk(parties, tmp_path, command)
        desk.certify("trainer")
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "README.md").touch()
        desk.weights = folder = tmp_path
        certificate = desk.certificate = tmp_path.with_suffix(".json")
        desk.certify("trainer")
    return FormatSource(signed=read_certificate(certificate), certificate="certificate.json", folder=folder)


def files(source: FormatSource) -> dict[str, str]:
    paths = [path for path in source.folder.iterdir() if path.suffix in (".json", ".safetensors")]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="session")
def judge() -> Callable[[Any], None]:
    """CycloneDX's validator. Imported late: it builds a grammar of IRIs, for 1.5 s in each process."""
    made, versions = import_module("cyclonedx.validation.json"), import_module("cyclonedx.schema").SchemaVersion
    validator = made.JsonStrictValidator(versions.V1_6)

    def check(document: Any) -> None:
        error = validator.validate_str(json.dumps(document))
        assert error is None, error

    return check


def read_spdx(data: bytes) -> Any:
    """The elements by the ends of their ids. The library has to write what it read, but for the order."""
    found, again = model.SHACLObjectSet(), io.BytesIO()
    model.JSONLDDeserializer().deserialize_data(json.loads(data), found)
    assert not found.missing_ids
    model.JSONLDSerializer().write(found, again)
    graphs = [{one.get("spdxId"): one for one in json.loads(text)["@graph"]} for text in (data, again.getvalue())]
    assert graphs[0] == graphs[1]
    return {one.spdxId.split("#")[1]: one for one in found.foreach_type(model.Element)}


def properties(of: Any) -> dict[str, str]:
    return {one["name"].removeprefix("tiebreak:"): one["value"] for one in of["properties"]}


@pytest.mark.parametrize("answers", DECLARED, ids=["nothing", "all", "hostile"])
def test_cyclonedx_names_model_base_data_and_training(
    source: FormatSource, answers: Any, judge: Callable[[Any], None]
) -> None:
    source = replace(source, about=About(answers=answers))
    data, made = bills.cyclonedx(source), source.signed.certificate
    judge(json.loads(data))
    assert bills.cyclonedx_again(replace(source, about=About()), data) == data
    found, job = json.loads(data), made.document()["predicate"]["job"]
    about, card = found["metadata"]["component"], found["metadata"]["component"]["modelCard"]
    assert about["name"] == answers.get("name", "model")
    assert properties(about) == {"root": made.record.state_root.hex()}
    assert {one["name"]: one["hashes"] for one in about["components"]} == {
        name: [{"alg": "SHA-256", "content": digest}] for name, digest in files(source).items()
    }
    term = {"id": "Apache-2.0"} if answers is ANSWERS else {"name": "llama3.1"}
    assert about.get("licenses", []) == [{"license": term | {"acknowledgement": "declared"}}][: len(answers)]
    assert ("version" in about) == (answers is ANSWERS), "at most 1,024 characters"
    assert card.get("considerations", {}).get("useCases", [""]) == [answers.get("purpose", "")]
    components = {one["bom-ref"]: one for one in found["components"]}
    assert properties(components["data"]) == {"root": job["data"]}
    formula = found["formulation"][0]
    assert [properties(one)["root"] for one in formula["components"]] == [job["program"], job["firstState"]]
    assert formula["workflows"][0]["inputs"][3]["parameters"][0] == {"name": "steps", "value": str(job["steps"])}
    if made.adapter is not None:
        assert properties(components["base"]) == {"root": made.adapter.root.hex()}
        assert found["dependencies"] == [{"ref": "model", "dependsOn": ["base"]}]
    elif answers:
        assert about["pedigree"]["ancestors"][0]["purl"] == f"pkg:huggingface/{answers['base_model']}"
    about["licenses"] = [{"license": {"id": known}} for known in bills.LICENSES.split()]
    judge(found)
    with pytest.raises(AssertionError, match="Additional properties are not allowed"):
        judge(found | {"hashes": []})


@pytest.mark.parametrize("answers", DECLARED, ids=["nothing", "all", "hostile"])
def test_spdx_relates_the_model_to_data_base_and_training(source: FormatSource, answers: Any) -> None:
    source = replace(source, about=About(answers=answers))
    data, made = bills.spdx(source), source.signed.certificate
    found = read_spdx(data)
    assert bills.spdx_again(replace(source, about=About()), data) == data
    job = made.document()["predicate"]["job"]
    assert found["model"].name == answers.get("name", "model")
    assert (found["trainedOn"].from_, [*found["trainedOn"].to]) == (found["model"], [found["data"]])
    for name in ("data", "program", "firstState"):
        assert found[name].externalIdentifier[0].identifier == f"urn:tiebreak:root:{job[name]}"
    assert [*found["hasInput"].to] == [found[name] for name in ("program", "firstState", "data")]
    assert found["run"].build_buildId == job["id"]
    assert {one.name: one.verifiedUsing[0].hashValue for one in found["contains"].to} == files(source)
    assert ("descendantOf" in found) == (made.adapter is not None or bool(answers))
    assert ("hasDeclaredLicense" in found) == (answers is ANSWERS), "no id of SPDX, no licence"
    assert found["about"].statement == source.about.carried()
    assert {one for one in found.values() if one not in found["bom"].element} == {
        found[name] for name in ("document", "bom", "about")
    }


@pytest.mark.parametrize("name", ["cyclonedx", "spdx"])
def test_what_a_bill_asks_for_has_a_place_in_it(source: FormatSource, name: str) -> None:
    text = FORMATS[name].make(replace(source, about=About(answers=ANSWERS))).decode()
    text = text.replace(json.dumps(About(answers=ANSWERS).carried()), "")
    answers = ANSWERS | {"license": "Apache-2.0"}
    placed = {one for one, answer in answers.items() if str(answer[0] if FIELDS[one].many else answer) in text}
    assert placed == {*FORMATS[name].asks}


BEGIN = rb"{\"answers\":{"
DAMAGES: list[tuple[bytes, bytes]] = [
    (b'"metadata"', b'"metadate"'), (b'"@graph"', b'"@grap"'), (b'"tiebreak:about", "value": ', b'"value": 1, "y": '),
    (b'"statement": "', b'"statement": [], "y": "'), (BEGIN, BEGIN.replace(b"answers", b"answer")),
    (BEGIN, rb"\ud800" + BEGIN), (BEGIN, BEGIN + rb"\"name\":" + b"9" * 5000 + b","),
    (BEGIN, BEGIN + rb"\"purpose\":\"a\\nb\","), (b"{", b'{"a": 1, "a": 2, '),
    (b"{", b'{"a": ' + b"9" * 5000 + b", "), (b"{", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b", "), (b"{", b"[{"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["cyclonedx", "spdx"])
def test_a_damaged_bill_is_refused(source: FormatSource, name: str, cases: Callable[[], None]) -> None:
    data = FORMATS[name].make(source)
    for old, new in DAMAGES:
        if old in data:
            cases()
            with pytest.raises(VerificationError):
                FORMATS[name].again(source, data.replace(old, new, 1))
