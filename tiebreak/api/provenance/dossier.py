"""A dossier of a model: what a technical documentation under the EU's AI Act asks, as one page that prints on A4.

Regulation (EU) 2024/1689, annexes IV and XI, for a model that somebody fine-tuned: the training, its data, computation
and energy, limits. Each line says how it is known: by a replay, by signatures, or by a person's word alone. What only
a person knows is asked by name, and stays empty if nobody answered (`about`). Nothing here is legal advice.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape, unescape
from typing import Final

from tiebreak.api.provenance.about import FIELDS, About
from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.rounding import Policy

MARKS: Final = {
    "replayable": "anybody with the run's files can compute it again, and an audit does",
    "signed": "the parties who signed the certificate say so, and tiebreak verify checks that they did",
    "declared": "the word of whoever made this page, which nothing here checks",
}
SECTIONS: Final = {
    "Model": (
        "name version provider contact license base_model base parameters files purpose excluded_uses distribution "
        "architecture language"
    ),
    "Training": "program first_state steps arithmetic design final_state",
    "Data": "data shapes datasets data_source data_rights data_preparation personal_data",
    "Computation": "operations environment machines period settlement energy",
    "Evaluation and use": "evaluation limits oversight",
    "Evidence": "certificate job trainer client signers audits",
}
"""Sections of the page, each with the names of its lines: those of `FIELDS` are declared, the others are `_lines`."""
ASKED: Final = tuple(name for names in SECTIONS.values() for name in names.split() if name in FIELDS)
_ABOUT: Final = re.compile('<meta name="about" content="([^"]{0,1000000})">')
_SIGNER: Final = re.compile('<code class="signer">0x([0-9a-f]{40})</code>')
_STYLE: Final = """
@page { size: A4; margin: 18mm }
body { font: 10.5pt/1.45 system-ui, sans-serif; max-width: 180mm; margin: 2em auto; padding: 0 1em; color: #1a1a1a;
       overflow-wrap: anywhere }
h1 { font-size: 18pt }
h2 { font-size: 12.5pt; margin: 1.4em 0 .3em; break-after: avoid }
table { width: 100%; border-collapse: collapse; table-layout: fixed }
td, th { border-top: 1px solid #ccc; padding: .35em .6em .35em 0; text-align: left; vertical-align: top }
tr { break-inside: avoid }
th { width: 31%; font-weight: 400 }
.mark { width: 15%; font-size: 9pt }
code { font-size: 8.5pt }
.declared { color: #8a4b00 } .signed { color: #0b4f8a } .replayable { color: #0a6b35 } .empty { color: #a00 }
@media print { body { margin: 0; padding: 0 } }
"""


def dossier(source: FormatSource) -> bytes:
    """The page, which is read without a network and runs no script."""
    known = {name: (mark, label, words) for name, mark, label, words in _lines(source)}
    known |= {name: ("declared", FIELDS[name].question, escape(", ".join(source.about.many(name)))) for name in ASKED}
    title = escape(source.about.text("name", f"Model of job {source.signed.certificate.job.id.hex()[:16]}"))
    legend = "".join(f'<tr><th class="{mark}">{mark}</th><td>{words}</td></tr>' for mark, words in MARKS.items())
    sections = "".join(
        f"<h2>{section}</h2><table>{''.join(_row(*known[name]) for name in names.split() if name in known)}</table>"
        for section, names in SECTIONS.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="about" content="{escape(source.about.carried())}"><style>{_STYLE}</style></head>
<body><h1>{title}</h1>
<p>Technical documentation of a trained model, with how each line is known.</p>
<table>{legend}</table>
{sections}
<p>Check it: <code>tiebreak verify FOLDER {escape(source.certificate)}</code>, with this page in the folder.
The certificate does not show that the run was computed as agreed: its signers say so, and an audit finds out.</p>
</body></html>
""".encode()


def dossier_again(source: FormatSource, data: bytes) -> bytes:
    """The page as it has to be, for the same answers and the signers that it names."""
    text = data.decode(errors="replace")
    found = _ABOUT.search(text)
    if found is None:
        raise EncodingError("expected a dossier with what was declared, got another page")
    named = {bytes.fromhex(address) for address in _SIGNER.findall(text)}
    signed = replace(source.signed, signers=[signer for signer in source.signed.signers if signer in named])
    return dossier(replace(source, signed=signed, about=About.read_carried(unescape(found[1]))))


def _row(mark: str, label: str, words: str) -> str:
    answer = f"<td>{words}</td>" if words else '<td class="empty">not answered</td>'
    return f'<tr><th>{label}</th>{answer}<td class="mark {mark}">{mark}</td></tr>'


def _lines(source: FormatSource) -> Iterator[tuple[str, str, str, str]]:
    """(name, mark, label, HTML) of each line that the certificate has."""
    signed, certificate = source.signed, source.signed.certificate
    job, sizes = certificate.job, certificate.sizes
    logged = "some sums rounded as the trainer's log says: unverifiable within the job's tolerance"
    exact = "every sum exact, rounded once: the same bytes on any machine"
    roots = {
        "program": ("Program (root)", job.program_root), "data": ("Data (root)", job.data_root),
        "first_state": ("First state (root)", job.initial_state_root),
        "final_state": ("Final state (root)", certificate.record.state_root),
    }  # fmt: skip
    for name, (label, root) in roots.items():
        yield name, "replayable", label, _code(root)
    if certificate.adapter is not None:
        yield "base", "replayable", "Base of these adapters (root)", _code(certificate.adapter.root)
    yield "steps", "replayable", "Steps of training", f"{job.steps:,}"
    policy, rule = Policy(job.policy).name.lower(), logged if job.is_logged else exact
    yield "arithmetic", "replayable", "Arithmetic", f"policy {policy}, {job.precision} bits: {rule}"
    if sizes is not None:
        yield "parameters", "replayable", "Parameters", f"{sizes.parameters:,}, of which {sizes.trained:,} are trained"
        total = f"{sizes.operations:,} in a step, {sizes.operations * job.steps:,} in all"
        yield "operations", "replayable", "Operations on numbers", total
        shapes = (
            f"{escape(name)}: {' x '.join(map(str, shape)) or 'one number'}" for name, shape in sizes.data.items()
        )
        yield "shapes", "replayable", "Entries of the data, with their sizes (first: examples)", "<br>".join(shapes)
    files = (f"{escape(name)}: {_code(digest)}" for name, digest in sorted(certificate.files.items()))
    yield "files", "signed", "Files of the weights (SHA-256)", "<br>".join(files)
    machine = (f"{escape(name)}: {escape(words)}" for name, words in certificate.environment.items())
    yield "environment", "signed", "Machine and software of whoever made the certificate", "<br>".join(machine)
    yield "certificate", "signed", "Certificate (SHA-256 of what is signed)", _code(certificate.payload.digest)
    yield "job", "signed", "Job", _code(job.id)
    for name, address in (("trainer", job.trainer), ("client", job.client)):
        yield name, "signed", f"Key of the {name}", f"<code>0x{address.hex()}</code>"
    signers = (f'{signed.role(one)}: <code class="signer">0x{one.hex()}</code>' for one in signed.signers)
    yield "signers", "signed", "Signed by", "<br>".join(signers)
    if certificate.settlement is not None:
        block = f"block {certificate.settlement.block:,} of chain {certificate.agreement.domain.chain_id}"
        yield "settlement", "signed", "Settled on a chain, which tells the time", block
    if certificate.audits:
        paid = (f"0x{seat.auditor.hex()} (seat {seat.number})" for seat in certificate.audits)
        yield "audits", "signed", "Auditors whom the chain paid", "<br>".join(paid)


def _code(digest: bytes) -> str:
    return f"<code>{digest.hex()}</code>"
