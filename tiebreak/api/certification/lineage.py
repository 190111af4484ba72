"""Says in words what weights come from, link by link, and where that ends in somebody's word. Imports no torch."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from tiebreak.api.certification.certificates import LineageLink
from tiebreak.api.certification.folders import EVALUATION
from tiebreak.protocol.commitments.eip712 import Address

ORIGINS: Final = {
    "start": "is what the run started from: its first state has these tensors in the same places.",
    "base": "is the base that these adapters were trained on: that state has its frozen tensors too.",
    "scored": "is what was scored: that state has its tensors too.",
    "under": "is the base of the adapter that was scored: that state has its tensors too.",
}


def documents(links: Sequence[LineageLink]) -> list[dict[str, Any]]:
    """A lineage (`certificates.verify_lineage`) for other programs. Origins: numbers of links, from 1."""
    return [
        {
            "weights": str(link.folder),
            "job": None if link.signed is None else link.signed.certificate.job.id.hex(),
            "signatures": [] if link.signed is None else link.signed.signatures,
            **{role: links.index(link.origins[role]) + 1 for role in link.origins},
            "word": ends(link),
        }
        for link in links
    ]


def lines(links: Sequence[LineageLink], required: Collection[Address]) -> list[str]:
    """The same for people. required: those who had to sign the certificate of the first link."""
    chain, word = list[str](), list[str]()
    for number, (link, one) in enumerate(zip(links, documents(links), strict=True), 1):
        said = ["no certificate was given"]
        if link.signed is not None:
            signers = ", ".join(f"{by['by']} {by['address']}" for by in one["signatures"])
            said = [f"job {one['job']}, signed by {signers}"]
            said += ["by nobody whom you require"] if required and not {*required} & {*link.signed.signers} else []
        said += [f"started from {one['start']}"] if "start" in one else []
        said += [f"trained on {one['base']}"] if "base" in one else []
        said += [f"scores of {one['scored']}"] if "scored" in one else []
        chain.append(f"  {number}. {link.folder}: {'; '.join(said)}.")
        word += [f"  - {number}: {sentence}" for sentence in one["word"]]
    word.append("  - That each run was computed as agreed: its signers say so, and an audit finds out.")
    return ["", "Lineage:", *chain, "", "Where it ends in somebody's word:", *word]


def registered(links: Sequence[LineageLink]) -> list[str]:
    """A sentence if the job that trained what was scored names the evaluation.

    So it did before there were weights, unless whoever signed that job did so after training.
    """
    link = links[0]
    scored = link.origins.get("scored")
    if scored is None or scored.signed is None or link.found.configuration is None:
        return []
    job = scored.signed.certificate.job
    is_named = job.nonce == int.from_bytes(link.found.configuration)
    said = f"job {job.id.hex()}, which made {scored.folder}, has the digest of {EVALUATION} as its nonce."
    return [f"Pre-registered: {said}"] if is_named else []


def ends(link: LineageLink) -> list[str]:
    """Sentences on what about the origins of weights nothing shows that was given, and on whose word it is."""
    if link.signed is None:
        return ["Where these weights are from is nobody's word, without a certificate."]
    certificate = link.signed.certificate
    first = "What else the first state has, such as moments, is"
    if "start" not in link.origins:
        root = "" if certificate.start is None else f" of root {certificate.start.root.hex()}"
        first = f"The first weights{root}, drawn at random or from elsewhere, are"
    job = certificate.job
    said = [f"{first} what the client 0x{job.client.hex()} and the trainer 0x{job.trainer.hex()} agreed on."]
    said = [] if link.signed.is_evaluation else said
    if certificate.adapter is not None and not {"base", "scored"} & link.origins.keys():
        what = "model" if link.signed.is_evaluation else "base"
        said.append(f"The {what} has the root {certificate.adapter.root.hex()}: the signers say so.")
    return said
