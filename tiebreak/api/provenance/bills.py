"""Bills of materials, which name a model's files, base, data and training: CycloneDX 1.6, and SPDX 3.0.1.

CycloneDX's own library has no classes for `modelCard` and `formulation`, and a light installation has no library of
either; so both are made as plain JSON, and the tests let the owners' libraries judge them.

`hashes` and `verifiedUsing` are SHA-256 of files. A root of a tree (docs/SPEC.md) is a property in CycloneDX, an
external identifier in SPDX. Both carry the answers of a person as text (`About.carried`): CycloneDX as the first
property of its metadata, SPDX as the annotation that ends its graph. Free text goes nowhere where a number, a date or
one of a list of words is expected.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from tiebreak.api.certification import folders
from tiebreak.api.provenance.about import About
from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.commitments.statement import is_list
from tiebreak.protocol.strict_json import JsonObject

CDX_ASKS: Final = (
    "name", "version", "provider", "license", "base_model", "datasets", "tags", "pipeline_tag", "architecture",
    "purpose", "limits", "energy", "data_source", "personal_data",
)  # fmt: skip
SPDX_MODEL: Final = {
    "version": "software_packageVersion", "architecture": "description", "purpose": "ai_informationAboutApplication",
    "limits": "ai_limitation", "design": "ai_informationAboutTraining",
}  # fmt: skip
"""Answers that are fields of the model in SPDX."""
SPDX_ASKS: Final = (
    "name", "provider", "license", "base_model", "datasets", "data_source", "data_preparation", *SPDX_MODEL,
)  # fmt: skip
LICENSES: Final = (
    "0BSD AFL-3.0 AGPL-3.0 AGPL-3.0-only AGPL-3.0-or-later Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 "
    "CC-BY-3.0 CC-BY-4.0 CC-BY-NC-3.0 CC-BY-NC-4.0 CC-BY-NC-ND-4.0 CC-BY-NC-SA-4.0 CC-BY-ND-4.0 CC-BY-SA-3.0 "
    "CC-BY-SA-4.0 CC0-1.0 CDLA-Permissive-1.0 CDLA-Permissive-2.0 CDLA-Sharing-1.0 ECL-2.0 EPL-2.0 EUPL-1.2 GPL-2.0 "
    "GPL-2.0-only GPL-2.0-or-later GPL-3.0 GPL-3.0-only GPL-3.0-or-later ISC LGPL-2.1 LGPL-2.1-only LGPL-2.1-or-later "
    "LGPL-3.0 LGPL-3.0-only LGPL-3.0-or-later MIT MPL-2.0 MS-PL NCSA ODC-By-1.0 ODbL-1.0 OFL-1.1 OSL-3.0 PDDL-1.0 "
    "PostgreSQL Unlicense WTFPL Zlib etalab-2.0"
)
"""SPDX ids of common licences, apart by spaces. Fixed: with another list, one certificate would make other files."""
_PARAMETERS: Final = ("steps", "checkpoints", "policy", "precision")
_DEPTH: Final = 16


def _urn(source: FormatSource) -> str:
    return f"urn:tiebreak:certificate:{source.signed.certificate.payload.digest.hex()}"


def _identity(source: FormatSource) -> str:
    """The id of a bill. Bills of one certificate differ only in what a person declares."""
    return uuid5(NAMESPACE_URL, f"{_urn(source)} {source.about.carried()}").urn


def _with_carried(source: FormatSource, holder: object, field: str) -> FormatSource:
    """The source with what a file carries in a field. Raises `EncodingError`."""
    text = JsonObject("answers", holder).text(field, "[ -~]+", "JSON in ASCII")
    return replace(source, about=About.read_carried(text))


def _job(source: FormatSource) -> Any:
    return source.signed.certificate.document()["predicate"]["job"]


def _files(source: FormatSource) -> list[tuple[str, str]]:
    """Paths with SHA-256 of all files but those that people read, which may change (`folders.PROSE`)."""
    made = source.signed.certificate
    digests = {**made.files, **(made.others or {})}
    if made.adapter is not None:
        digests[folders.ADAPTER] = made.adapter.configuration
    return [(name, digests[name].hex()) for name in sorted(digests) if Path(name).suffix not in folders.PROSE]


def _base(source: FormatSource) -> tuple[str, str, str]:
    """Name, package URL and root of the base; the last two are empty if unknown."""
    adapter, name = source.signed.certificate.adapter, source.about.text("base_model")
    return name or "base", name and f"pkg:huggingface/{name}", "" if adapter is None else adapter.root.hex()


def _license(about: About) -> str:
    """The SPDX id of the licence, however a person spells it; empty if it is none of `LICENSES`."""
    return {known.lower(): known for known in LICENSES.split()}.get(about.text("license").lower(), "")


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value, at any depth. Neither format has a way to say that an answer is missing."""
    found = {name: _given(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in found.items() if value not in ("", [], [""], {})}


# ---------------------------------------------------------------- CycloneDX


def _properties(values: Mapping[str, object], kind: str = "") -> list[dict[str, str]]:
    return [{"name": f"tiebreak:{kind}{name}", "value": str(value)} for name, value in values.items() if value != ""]


def _component(kind: str, ref: str, name: str, root: str, **more: Any) -> dict[str, Any]:
    return _given({"type": kind, "bom-ref": ref, "name": name, **more, "properties": _properties({"root": root})})


def cyclonedx(source: FormatSource) -> bytes:
    about, sizes, (name, url, root) = source.about, source.signed.certificate.sizes, _base(source)
    model, base = _model(source), _component("machine-learning-model", "base", name, root, purl=url)
    if url and not root:  # no root of the certificate shows that there is a base
        model["pedigree"] = {"ancestors": [base]}
    shapes = {} if sizes is None else {name: json.dumps(shape) for name, shape in sizes.data.items()}
    data = _given({
        "type": "dataset", "name": "data", "description": about.text("data_source"),
        "sensitiveData": [about.text("personal_data")], "contents": {"properties": _properties(shapes, "shape:")},
    })  # fmt: skip
    bases, data = [base] if root else [], _component("data", "data", "data", _job(source)["data"], data=[data])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6",
        "serialNumber": _identity(source), "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "tiebreak"}]}, "component": model,
            "properties": _properties({"about": about.carried()}),
        },
        "components": [*bases, data], "formulation": [_formula(source)],
        "dependencies": [{"ref": "model", "dependsOn": [one["bom-ref"] for one in bases]}],
    }  # fmt: skip
    return json.dumps(document).encode() + b"\n"


def _model(source: FormatSource) -> dict[str, Any]:
    made, about, known = source.signed.certificate, source.about, _license(source.about)
    term, version = {"id": known} if known else {"name": about.text("license")}, about.text("version")
    sizes = {} if made.sizes is None else {n: v for n, v in made.sizes.document().items() if n != "data"}
    data = [{"ref": "data"}, *({"type": "dataset", "name": name} for name in about.many("datasets"))]
    task, form, energy = about.text("pipeline_tag"), about.text("architecture"), {"energy": about.text("energy")}
    card = {
        "modelParameters": {"task": task, "modelArchitecture": form, "datasets": data},
        "considerations": {
            "useCases": [about.text("purpose")], "technicalLimitations": [about.text("limits")],
            "environmentalConsiderations": {"properties": _properties(energy)},
        },
        "properties": _properties(sizes),
    }  # fmt: skip
    return _component(
        "machine-learning-model", "model", about.text("name", "model"), made.record.state_root.hex(),
        version=version if len(version) <= 1024 else "",  # the most that the schema allows
        supplier={"name": about.text("provider")}, tags=about.many("tags"), modelCard=card,
        licenses=[{"license": term | {"acknowledgement": "declared"}}] if about.text("license") else [],
        components=[
            {"type": "file", "name": n, "hashes": [{"alg": "SHA-256", "content": d}]} for n, d in _files(source)
        ],
        externalReferences=[{"type": "attestation", "url": _urn(source)}],
    )  # fmt: skip


def _formula(source: FormatSource) -> dict[str, Any]:
    """The training: a program makes the model from the first state and the data."""
    made, job = source.signed.certificate, _job(source)
    parties = {"trainer": job["trainer"], "client": job["client"], "root": made.head.head.run_root.hex()}
    run = {
        "bom-ref": "run", "uid": job["id"], "name": "training", "taskTypes": ["build"],
        "inputs": [
            *({"resource": {"ref": ref}} for ref in ("program", "firstState", "data")),
            {"parameters": [{"name": name, "value": str(job[name])} for name in _PARAMETERS]},
        ],
        "outputs": [{"type": "artifact", "resource": {"ref": "model"}}],
        "properties": _properties(parties) + _properties(made.environment, "environment:"),
    }  # fmt: skip
    kinds = {"program": "application", "firstState": "data"}
    return {"components": [_component(kinds[ref], ref, ref, job[ref]) for ref in kinds], "workflows": [run]}


def cyclonedx_again(source: FormatSource, data: bytes) -> bytes:
    metadata = JsonObject.parse("CycloneDX", data, _DEPTH).inner("metadata")
    return cyclonedx(_with_carried(source, metadata.take("properties", "at least one", is_list)[0], "value"))


# ---------------------------------------------------------------- SPDX


def spdx(source: FormatSource) -> bytes:
    ids = f"{_identity(source)}#"
    elements = [{"spdxId": ids + name, **_given(one)} for name, one in (*_elements(source, ids), *_links(source, ids))]
    # `ai` and `dataset` require times of release and places to download, for which nobody vouches.
    profiles = ["core", "software", "build", *(["simpleLicensing"] if _license(source.about) else [])]
    document = {"type": "SpdxDocument", "spdxId": f"{ids}document", "rootElement": [f"{ids}bom"]}
    bom = {
        "type": "software_Sbom", "spdxId": f"{ids}bom", "software_sbomType": ["build"],
        "rootElement": [f"{ids}model"], "element": [one["spdxId"] for one in elements],
    }  # fmt: skip
    carried = {
        "type": "Annotation", "spdxId": f"{ids}about", "annotationType": "other", "subject": f"{ids}model",
        "contentType": "application/json", "statement": source.about.carried(),
    }  # fmt: skip
    creation = {
        "type": "CreationInfo", "@id": "_:CreationInfo0", "specVersion": "3.0.1", "createdBy": [f"{ids}tiebreak"],
        "created": "1970-01-01T00:00:00Z", "comment": "SPDX requires a time. Nobody vouches for one: this means none.",
    }  # fmt: skip
    graph = [*(one | {"profileConformance": profiles} for one in (document, bom)), *elements, carried]
    graph = [creation, *(one | {"creationInfo": "_:CreationInfo0"} for one in graph)]
    context = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
    return json.dumps({"@context": context, "@graph": graph}).encode() + b"\n"


def _element(kind: str, name: str, root: str = "", **more: Any) -> dict[str, Any]:
    one = {"type": "ExternalIdentifier", "externalIdentifierType": "other", "identifier": f"urn:tiebreak:root:{root}"}
    return {"type": kind, "name": name, "externalIdentifier": [one] if root else [], **more}


def _reference(locators: list[str], comment: str) -> list[dict[str, Any]]:
    one = {"type": "ExternalRef", "externalRefType": "other", "locator": locators, "comment": comment}
    return [one] if locators else []


def _entries(values: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"type": "DictionaryEntry", "key": name, "value": str(value)} for name, value in values.items()]


def _elements(source: FormatSource, ids: str) -> Iterator[tuple[str, dict[str, Any]]]:
    made, about, job = source.signed.certificate, source.about, _job(source)
    (name, url, root), provider = _base(source), about.text("provider")
    yield "model", _element(
        "ai_AIPackage", about.text("name", "model"), made.record.state_root.hex(), software_primaryPurpose="model",
        suppliedBy=provider and f"{ids}provider", externalRef=_reference([_urn(source)], "the certificate"),
        **{field: about.text(answer) for answer, field in SPDX_MODEL.items()},
    )  # fmt: skip
    yield "data", _element(
        "dataset_DatasetPackage", "data", job["data"], software_primaryPurpose="data",
        dataset_datasetType=["noAssertion"], externalRef=_reference(about.many("datasets"), "ids on the Hub"),
        dataset_dataCollectionProcess=about.text("data_source"),
        dataset_dataPreprocessing=[about.text("data_preparation")],
    )  # fmt: skip
    if url or root:
        yield "base", _element("ai_AIPackage", name, root, software_primaryPurpose="model", software_packageUrl=url)
    yield "program", _element("software_Package", "program", job["program"])
    yield "firstState", _element("software_Package", "first state", job["firstState"], software_primaryPurpose="data")
    yield "run", _element(
        "build_Build", "training", made.head.head.run_root.hex(), build_buildType="urn:tiebreak:job:1",
        build_buildId=job["id"], build_parameter=_entries({name: job[name] for name in _PARAMETERS}),
        build_environment=_entries(made.environment),
    )  # fmt: skip
    yield "tiebreak", _element("SoftwareAgent", "tiebreak")
    yield "trainer", _element("Agent", job["trainer"])
    if provider:
        yield "provider", _element("Agent", provider)
    if known := _license(about):
        expression = {"simplelicensing_licenseExpression": known}
        yield "license", _element("simplelicensing_LicenseExpression", known, **expression)
    for number, (file, digest) in enumerate(_files(source)):
        proof = {"type": "Hash", "algorithm": "sha256", "hashValue": digest}
        yield f"file{number}", _element("software_File", file, verifiedUsing=[proof])


def _links(source: FormatSource, ids: str) -> Iterator[tuple[str, dict[str, Any]]]:
    files = [f"file{number}" for number in range(len(_files(source)))]
    links = {
        "contains": ("model", files), "trainedOn": ("model", ["data"]),
        # SPDX 3.0.1 has no `finetunedOn`.
        "descendantOf": ("model", ["base"] if any(_base(source)[1:]) else []),
        "hasDeclaredLicense": ("model", ["license"] if _license(source.about) else []),
        "hasInput": ("run", ["program", "firstState", "data"]), "hasOutput": ("run", ["model"]),
        "invokedBy": ("run", ["trainer"]),
    }  # fmt: skip
    for kind, (of, to) in links.items():
        scope = {"type": "LifecycleScopedRelationship", "scope": "build"} if of == "run" else {"type": "Relationship"}
        if to:
            yield kind, {**scope, "relationshipType": kind, "from": ids + of, "to": [ids + one for one in to]}


def spdx_again(source: FormatSource, data: bytes) -> bytes:
    graph = JsonObject.parse("SPDX", data, _DEPTH).take("@graph", "at least one element", is_list)
    return spdx(_with_carried(source, graph[-1], "statement"))
