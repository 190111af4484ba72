"""Model cards: a header as Hugging Face's Hub reads it, and a section of Markdown that is made from a certificate.

Header and the other text are whatever their author wrote; only the section, between its two comments, is checked.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import LATE
from tiebreak.api.provenance.about import HUB_ID
from tiebreak.api.provenance.source import FormatSource, metrics_in, verify_command
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.commitments.statement import FILE, WORDS
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.strict_json import MAX_NESTING, JsonObject

BASE: Final = "base_model_name_or_path"
HEADER: Final = ("base_model", "datasets", "language", "license", "pipeline_tag", "tags")
"""Answers of a person that go into the header."""
MAX_BYTES: Final = 1 << 24
BEGIN, END = "<!-- tiebreak: what follows is made from the certificate -->", "<!-- tiebreak: end -->"
_SECTION: Final = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)
_HEADER: Final = re.compile(r"---\n(.*?\n)?---\n", re.DOTALL)


def card(source: FormatSource) -> bytes:
    """The card: header, then section, then the text of the one that is there, with a header of its own or without."""
    if not re.fullmatch(FILE, source.certificate):
        raise ConfigurationError(f"expected a certificate with a plain name, got {source.certificate!r}")
    found = _HEADER.match(source.text)
    header, fields = (found and found[1]) or "", _fields(source)
    for name in fields.keys() & source.about.answers.keys():  # a person's answer takes the place of an older one
        header = re.sub(rf"^{name}:.*\n(?:[ \t-].*\n)*", "", header, flags=re.MULTILINE)
    made = "".join(
        f"{name}: {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in fields.items()
        if not re.search(rf"^{name}:", header, re.MULTILINE)
    )
    body = _SECTION.sub("", source.text[found.end() :] if found else source.text).lstrip()
    return f"---\n{header}{made}---\n{_section(source)}\n{body}".encode(errors="surrogateescape")


def _fields(source: FormatSource) -> dict[str, Any]:
    """The fields of the header that are known."""
    fields: dict[str, Any] = {}
    base = hub_id(source.folder / folders.ADAPTER, BASE)
    if base and not Path(base).is_dir():  # then it is the path of the folder that the base was loaded from
        fields["base_model"] = base
    if metrics := metrics_in(source.scores) if source.scores else source.metrics:
        name = source.folder.resolve().parent.name
        dataset = {"name": f"data root {source.signed.certificate.job.data_root.hex()}", "type": "local"}
        found = [{"type": name, "value": value} for name, value in metrics.items()]
        results = [{"task": {"type": "text-generation"}, "dataset": dataset, "metrics": found}]
        fields["model-index"] = [{"name": name, "results": results}]
    if source.signed.certificate.adapter is not None and not source.signed.is_evaluation:
        fields |= {"base_model_relation": "adapter", "library_name": "peft"}
    return fields | {name: source.about.answers[name] for name in HEADER if name in source.about.answers}


def card_again(source: FormatSource, data: bytes) -> bytes | None:
    if BEGIN.encode() not in data and END.encode() not in data:
        return None
    text = data.decode(errors="surrogateescape")
    # Counted first: a search from each of many beginnings without an end would take for ever.
    found = _SECTION.findall(text) if text.count(BEGIN) == text.count(END) == 1 else []
    name = re.search(rf"\]\(({FILE})\)", found[0]) if found else None
    if name is None:
        raise EncodingError("expected one section made from a certificate, between its two comments, got another")
    # Who signs later need not write the card again: it may name some of the signers.
    signers = [signer for signer in source.signed.signers if f"0x{signer.hex()}" in found[0]]
    section = _section(replace(source, signed=replace(source.signed, signers=signers), certificate=name[1]))
    return text.replace(found[0], section).encode(errors="surrogateescape")


def _section(source: FormatSource) -> str:
    signed, certificate, metrics = source.signed, source.certificate, source.metrics
    job, adapter = signed.certificate.job, signed.certificate.adapter
    what, does = ("scores", "scores") if metrics else ("weights", "trains")
    measured = "".join(f"| {name} | {value!r} |\n" for name, value in metrics.items() if re.fullmatch(WORDS, name))
    base = "" if adapter is None else f"\n| Base | `{adapter.root.hex()}` |"
    late = re.sub(r"[^\w ,;:.()-]", "?", signed.certificate.environment.get(LATE, ""))
    base += f"\n| Late data | {late} |" if late else ""
    signers = "\n".join(f"| Signed by {signed.role(signer)} | `0x{signer.hex()}` |" for signer in signed.signers)
    return f"""{BEGIN}
## Certificate

    {verify_command(signed, certificate)}

These {what} are what {job.steps:,} steps of a fixed program make of fixed data, from a fixed first state.
Every result is defined to the last bit, so anybody who {does} again gets the same bytes.
[{certificate}]({certificate}) says which, and `tiebreak verify` checks every tensor against it.

| | |
| --- | --- |
{measured}| Certificate | `{signed.certificate.payload.digest.hex()}` |
| Job | `{job.id.hex()}` |
| Program | `{job.program_root.hex()}` |
| Data | `{job.data_root.hex()}` |
| First state | `{job.initial_state_root.hex()}` |{base}
| Final state | `{signed.certificate.record.state_root.hex()}` |
{signers}

It does not show that the run was computed as agreed: its signers say so, and an audit finds out.
{END}
"""


def hub_id(path: Path, field: str) -> str:
    """The id of a model on the Hub in a field of a JSON file; empty if it has none."""
    data = read_file(path, MAX_BYTES) if path.is_file() else b"{}"
    found = JsonObject.parse(str(path), data, MAX_NESTING)
    name = str(found.take(field, "a name", lambda _: True)) if field in found else ""
    return name if re.fullmatch(HUB_ID, name, re.ASCII) else ""
