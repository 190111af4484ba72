"""Bills of materials, which name a model's files, base, data and training: CycloneDX 1.6, and SPDX 3.0.1.

CycloneDX's own library has no classes for `modelCard` and `formulation`, and a light installation has no library of
either; so both are made as plain JSON (`templates`), and the tests let the owners' libraries judge them.

`hashes` and `verifiedUsing` are SHA-256 of files. A root of a tree (docs/SPEC.md) is a property in CycloneDX, an
external identifier in SPDX. Both carry the answers of a person as text (`About.carried`): CycloneDX as the first
property of its metadata, SPDX as the annotation that ends its graph. Free text goes nowhere where a number, a date or
one of a list of words is expected. Neither format has a way to say that an answer is missing. SPDX's profiles `ai` and
`dataset` are not claimed: they require times of release and places to download, for which nobody vouches. SPDX 3.0.1
has no `finetunedOn`.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from tiebreak.api.certification import folders
from tiebreak.api.provenance.about import FIELDS, About
from tiebreak.api.provenance.filling import fill, template
from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.commitments.statement import is_list
from tiebreak.protocol.strict_json import JsonObject

CYCLONEDX, SPDX = template("cyclonedx.json"), template("spdx.json")
LICENSES: Final = template("licenses.txt")
"""SPDX ids of common licences, one a line. Fixed: with another list, one certificate would make other files."""
_MAX_VERSION: Final = 1024
"""The most characters that CycloneDX allows."""
_DEPTH: Final = 16
CDX_ASKS, SPDX_ASKS = (tuple(name for name in FIELDS if f"$about.{name}" in text) for text in (CYCLONEDX, SPDX))
"""The answers of a person that have a place."""


def cyclonedx_again(source: FormatSource, data: bytes) -> bytes:
    metadata = JsonObject.parse("CycloneDX", data, _DEPTH).inner("metadata")
    return cyclonedx(_with_carried(source, metadata.take("properties", "at least one", is_list)[0], "value"))


def spdx_again(source: FormatSource, data: bytes) -> bytes:
    graph = JsonObject.parse("SPDX", data, _DEPTH).take("@graph", "at least one element", is_list)
    return spdx(_with_carried(source, graph[-1], "statement"))


def _with_carried(source: FormatSource, holder: object, field: str) -> FormatSource:
    """The source with what a file carries in a field. Raises `EncodingError`."""
    text = JsonObject("answers", holder).text(field, "[ -~]+", "JSON in ASCII")
    return replace(source, about=About.read_carried(text))


def _made(text: str, source: FormatSource) -> bytes:
    made, about, fields = source.signed.certificate, source.about, source.fields()
    # Bills of one certificate differ only in what a person declares.
    identity = uuid5(NAMESPACE_URL, f"urn:tiebreak:certificate:{fields['digest']} {about.carried()}").urn
    name, root = about.text("base_model"), "" if made.adapter is None else made.adapter.root.hex()
    url = name and f"pkg:huggingface/{name}"
    values = fields | {
        "about": _answers(about, url), "files": _files(made), "carried": about.carried(), "identity": identity,
        "supplier": about.text("provider") and f"{identity}#provider", "base": name or (root and "base"),
        "dependency": {"ref": "model", "dependsOn": ["base"] * bool(root)},
        "ancestor": "" if root else url,  # then no root of the certificate shows that there is a base
    }  # fmt: skip
    return json.dumps(fill(json.loads(text), values)).encode() + b"\n"


cyclonedx, spdx = partial(_made, CYCLONEDX), partial(_made, SPDX)


def _answers(about: About, url: str) -> dict[str, Any]:
    """A person's answers as the templates have them. url: of the package of the base."""
    found = {name: about.many(name) if field.many else about.text(name) for name, field in FIELDS.items()}
    version, term = about.text("version"), about.text("license")
    known = {one.lower(): one for one in LICENSES.split()}.get(term.lower(), "")  # however a person spells it
    return found | {
        "name": about.text("name", "model"), "version_1024": version if len(version) <= _MAX_VERSION else "",
        "license_id": known, "license_name": "" if known else term, "base_model_url": url,
    }  # fmt: skip


def _files(made: Certificate) -> dict[str, str]:
    """SHA-256 of all files by their paths, but for those that people read, which may change (`folders.PROSE`)."""
    digests = {**made.files, **(made.others or {})}
    if made.adapter is not None:
        digests[folders.ADAPTER] = made.adapter.configuration
    return {name: digests[name].hex() for name in sorted(digests) if Path(name).suffix not in folders.PROSE}
