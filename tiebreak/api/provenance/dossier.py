"""A dossier of a model: what a technical documentation under the EU's AI Act asks, as one page that prints on A4.

Regulation (EU) 2024/1689, annexes IV and XI, for a model that somebody fine-tuned: the training, its data, computation
and energy, limits. Each line says how it is known: by a replay, by signatures, or by a person's word alone. What only
a person knows is asked by name, and stays empty if nobody answered (`about`). Nothing here is legal advice.
"""

import json
import re
from dataclasses import replace
from html import escape, unescape
from typing import Any, Final

from tiebreak.api.provenance.about import FIELDS, About
from tiebreak.api.provenance.filling import fill, template
from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.errors import EncodingError

PAGE: Final = template("dossier.html")
SECTIONS: Final = json.loads(template("dossier.json"))
"""Sections of the page with their lines: a name of `FIELDS`, which is declared, or one of the certificate's."""
ASKED: Final = tuple(line for lines in SECTIONS.values() for line in lines if isinstance(line, str))
_ABOUT: Final = re.compile('<meta name="about" content="([^"]{0,1000000})">')
_SIGNER: Final = re.compile(": <code>0x([0-9a-f]{40})</code>")


def dossier(source: FormatSource) -> bytes:
    """The page, which is read without a network and runs no script."""
    certificate, job = source.signed.certificate, source.signed.certificate.job
    logged = "some sums rounded as the trainer's log says: unverifiable within the job's tolerance"
    exact = "every sum exact, rounded once: the same bytes on any machine"
    values = source.fields() | {
        "rounding": logged if job.is_logged else exact,
        "files": {name: digest.hex() for name, digest in sorted(certificate.files.items())},
    }  # fmt: skip
    if (sizes := certificate.sizes) is not None:
        shapes = {name: " x ".join(map(str, shape)) or "one number" for name, shape in sizes.data.items()}
        values |= {"operations": sizes.operations * job.steps, "shapes": shapes}
    sections = "".join(
        f"<h2>{section}</h2><table>{''.join(_row(line, source.about) for line in lines)}</table>"
        for section, lines in fill(SECTIONS, values).items()
    )
    page = {
        "title": escape(source.about.text("name", f"Model of job {job.id.hex()[:16]}")), "sections": sections,
        "about": escape(source.about.carried()), "certificate": escape(source.certificate),
    }  # fmt: skip
    return str(fill(PAGE, page)).encode()


def dossier_again(source: FormatSource, data: bytes) -> bytes:
    """The page as it has to be, for the same answers and the signers that it names."""
    text = data.decode(errors="replace")
    if (found := _ABOUT.search(text)) is None:
        raise EncodingError("expected a dossier with what was declared, got another page")
    named = {bytes.fromhex(address) for address in _SIGNER.findall(text)}
    signed = replace(source.signed, signers=[signer for signer in source.signed.signers if signer in named])
    return dossier(replace(source, signed=signed, about=About.read_carried(unescape(found[1]))))


def _row(line: Any, about: About) -> str:
    if isinstance(line, str):
        line = {"mark": "declared", "label": FIELDS[line].question, "lines": [{"text": ", ".join(about.many(line))}]}
    mark, parts = line["mark"], line.get("lines", [])
    codes = [f"<code>{escape(part['code'])}</code>" if "code" in part else "" for part in parts]
    words = "<br>".join(escape(part.get("text", "")) + code for part, code in zip(parts, codes, strict=True))
    answer = f"<td>{words}</td>" if words else '<td class="empty">not answered</td>'
    return f'<tr><th>{line["label"]}</th>{answer}<td class="mark {mark}">{mark}</td></tr>'
