"""`tiebreak certify`, `verify`, `ownership`: where weights come from, and whose run it was."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.engine.data.disk import read_file
from tiebreak.engine.run.segments import chances
from tiebreak.protocol.commitments.certificate import MAX_EVIDENCE_BYTES, Attestation
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.certification.folders import Found

MODEL = click.Path(exists=True, path_type=Path)
MOST = (1 << 63) - 1
_FILES = "a .safetensors file, or a folder as `save_pretrained` writes it, of a PEFT adapter too"


def _formats(_: click.Context, __: click.Parameter, value: str | None) -> list[str]:
    names = value.split(",") if value else []
    if wrong := [name for name in names if name not in api.formats.FORMATS]:
        raise ConfigurationError(f"expected formats among {', '.join(api.formats.FORMATS)}, got {wrong[0]!r}")
    return names


@click.command()
@click.argument("run", type=opt.FOLDER)
@click.option("--weights", type=MODEL, required=True, help=f"The run's final weights (`tiebreak weights`): {_FILES}.")
@opt.key_option("Key file of the signer.  [default: only show the certificate]", required=False)
@opt.output_option("certificate.json", "The certificate; if it exists, your signature is added.", kind=opt.NEW_FILE)
@opt.rpc_option(required=False)
@opt.from_block_option("With --rpc: the first block in which the job may have been settled.")
@click.option("--attestation", type=(str, opt.FILE), metavar="TYPE FILE", help="Put a hardware attestation, FILE, into "
              "a new certificate. It is not checked here; the nonce that it signs has to be the run root.")  # fmt: skip
@click.option("--for", "formats", callback=_formats, metavar="NAME,...", help="Also write the certificate for other "
              "tools, in a folder of weights, else beside the certificate: hub (README.md, a model card), slsa, "
              "in-toto, model-signing, dossier, cyclonedx, spdx, receipt. slsa needs the trainer's --key, in-toto and "
              "model-signing a signer's.")  # fmt: skip
@click.option("--certificate-chain", "chain", type=opt.FILE, help="With --for model-signing: X.509 certificates in "
              "PEM that name your P-256 key (`tiebreak key FILE --public`), leaf first, to go into it.")  # fmt: skip
@click.option("--about", type=opt.FILE, help="TOML file with what no run shows (license, datasets, limits, ...), for "
              "the formats that have a place for it; fields, and a file to fill in: docs/certificates.md.")  # fmt: skip
@opt.json_option
def certify(
    run: Path, weights: Path, key: Path | None, output: Path, rpc: str | None, from_block: int, as_json: bool,
    attestation: tuple[str, Path] | None, formats: list[str], about: Path | None, chain: Path | None,
) -> None:  # fmt: skip
    """Certify that weights are what RUN ended with.

    The trainer makes the certificate in the folder that it trained in. An auditor signs it with its own replay as RUN
    (`tiebreak audit`), the client with the run that it fetched: each compares the certificate and every tensor with its
    own files before it signs. With --rpc the transaction that settled the job goes in, and the auditors of its seats.

    The file is an in-toto statement in a DSSE envelope. In addition to each party's signature there is one that `cosign
    verify-blob-attestation` and in-toto's libraries check by the party's P-256 key (`tiebreak key FILE --public`).
    """
    opened = api.reading.open_directory(run)
    ending = None
    if rpc is not None and not output.exists():
        head = api.onchain.signed_head(opened, None).head
        ending = api.endings.ending_of(api.boards.board_of(rpc, opened), head, from_block)
    evidence = None
    if attestation is not None:
        evidence = Attestation(kind=attestation[0], evidence=read_file(attestation[1], MAX_EVIDENCE_BYTES))
    if chain is not None and api.formats.LAST not in formats:
        raise ConfigurationError(f"expected --for {api.formats.LAST} with --certificate-chain, got none")
    api.formats.keep_bundle(formats, weights, output, signs=key is not None)
    chained = () if chain is None else api.x509_chains.read_chain(chain)
    known = api.about.About() if about is None else api.about.About.read(about)
    owner = None if key is None else load_key(key)
    files = {api.formats.FORMATS[name].file for name in formats}
    signed, found = api.issuance.certify(opened, weights, output, owner, ending, evidence, files)
    source = api.source.FormatSource(
        signed=signed, certificate=output.name, folder=api.formats.folder_of(weights, output), key=owner, about=known,
        chain=chained,
    )  # fmt: skip
    written = list(map(str, api.formats.write(formats, source)))
    missing = [name for name in known.missing if any(name in api.formats.FORMATS[one].asks for one in formats)]
    document = {"certificate": str(output), "formats": written, "not_declared": missing, **_document(signed, found)}
    opt.tell(document, as_json=as_json)
    opt.log_artifacts(run, [output, *map(Path, written)], "certificate")


@click.command()
@click.argument("model", type=MODEL)
@click.argument("certificate", type=opt.FILE)
@opt.require_option
@click.option("--base", "bases", type=MODEL, multiple=True, help="Also check that MODEL was trained on this model, as "
              "an adapter is, or that its run started from these weights; may be repeated.")  # fmt: skip
@click.option("--base-certificate", "base_certificates", type=opt.FILE, multiple=True, help="The certificate of a "
              "--base, in the order of these: follow that to its own base and start, and print the lineage. --require "
              "is about MODEL's certificate alone; --resaved and --others are for all. May be repeated.")  # fmt: skip
@click.option("--resaved", is_flag=True, help="Accept other bytes of the files, if each tensor is the certified one.")
@click.option("--others", is_flag=True, help="Accept a folder with files from which a loader could take other weights "
              "or code.")  # fmt: skip
@opt.rpc_option(required=False)
@click.option("--attestation-verifier", "verifier", metavar="COMMAND", help="Run `COMMAND TYPE NONCE` on the "
              "evidence in the certificate, which is its standard input, and show what it says.")  # fmt: skip
@click.option("--require-attestation", is_flag=True, help="Fail (exit 2) unless the attestation command succeeds.")
@opt.json_option
def verify(
    model: Path, certificate: Path, require: tuple[Address, ...], resaved: bool, others: bool, rpc: str | None,
    verifier: str | None, require_attestation: bool, as_json: bool, bases: tuple[Path, ...],
    base_certificates: tuple[Path, ...],
) -> int:  # fmt: skip
    """Check that MODEL is what its CERTIFICATE says.

    MODEL is a .safetensors file, or a folder as `save_pretrained` writes it, also of a PEFT adapter alone. Without a
    network the command checks the signatures of client and trainer under the job, the trainer's under the head, and all
    under the certificate; that each tensor in MODEL is one of the final state that the head commits to, all that the
    certificate is for and no others; and the SHA-256 of the files. From a folder transformers or PEFT must load these
    very files: weights in other formats, code, and names that they do not take are refused. Files that `certify --for`
    wrote, beside MODEL or CERTIFICATE, must say the same. With --rpc it also asks a node whether the job was settled
    with this head.
    You say who must have signed: addresses of parties that you trust.

    It says what that proves, and what it does not. Exit codes: 0 it holds, 2 it does not, 1 not possible as asked. What
    a verifier of attestations says changes neither, unless you ask for it.
    """
    if require_attestation and verifier is None:
        raise ConfigurationError("expected --attestation-verifier with --require-attestation, got none")
    links = api.certificates.verify_lineage(
        model, certificate, bases, base_certificates, require=require, resaved=resaved, others=others
    )
    signed, found, origins = links[0].signed, links[0].found, links[0].origins
    assert signed is not None
    proves = [*signed.proves(), f"Each of the {len(found.tensors)} tensors in {model} is one of that final state."]
    if found.same:
        proves.append(f"{len(found.same)} other files of {model} have the SHA-256 that was signed for.")
    proves += [f"{link.folder} {api.lineage.ORIGINS[role]}" for role, link in origins.items()]
    proves += api.lineage.registered(links)
    proves += api.formats.check(signed, model, certificate)
    open_ = signed.leaves_open(found, chain_asked=rpc is not None, base_given=bool({"base", "scored"} & origins.keys()))
    if rpc is not None:
        api.endings.check_ending(api.boards.board_of(rpc, signed.certificate), signed.certificate)
        proves.append("The node says that the board settled the job with this head.")
    said = None if verifier is None else api.attestation.ask(signed.certificate, verifier)
    required = [f"0x{address.hex()}" for address in require]
    if as_json:
        document = {"holds": True, "required": required, **_document(signed, found)}
        document |= {"proves": proves, "not_proven": open_}
        document |= {"lineage": api.lineage.documents(links)} if bases else {}
        if verifier is not None:
            document["attestation_verifier"] = None if said is None else asdict(said)
        opt.tell(document, as_json=True)
    else:
        parties = ", ".join(required)
        by = f", signed by {parties}." if parties else " for keys that anybody can make: no --require is given."
        lines = [f"The certificate holds{by}", "", "What it proves:", *(f"  - {line}" for line in proves)]
        lines += ["", "What it does not prove:", *(f"  - {line}" for line in open_)]
        lines += api.lineage.lines(links, require) if base_certificates else []
        if verifier is not None and said is None:
            lines += ["", "The verifier of attestations was not asked: the certificate has none."]
        elif said is not None:
            how = "was stopped" if said.code is None else f"ended with {said.code}"
            lines += ["", f"Besides, the verifier of attestations {how} and said:"]
            lines += [f"  | {line}" for line in said.text.split("\n")]
        click.echo("\n".join(lines))
    return 2 * (require_attestation and (said is None or said.code != 0))


def _document(signed: "api.certificates.SignedCertificate", found: "Found") -> dict[str, Any]:
    job, certificate = signed.certificate.job, signed.certificate
    return {
        "job": job.id.hex(),
        "program": job.program_root.hex(),
        "data": job.data_root.hex(),
        "first_state": job.initial_state_root.hex(),
        "final_state": certificate.record.state_root.hex(),
        "run_root": certificate.head.head.run_root.hex(),
        **({} if certificate.adapter is None else {"base": certificate.adapter.root.hex()}),
        **({} if certificate.start is None else {"start": certificate.start.root.hex()}),
        "tensors": len(found.tensors),
        "files": [{"file": name, "sha256": found.files[name].hex()} for name in sorted(found.files)],
        "other_files": {
            "signed": sorted(found.same),
            "different": sorted(found.different),
            "unsigned": list(found.unsigned),
        },
        "signatures": signed.signatures,
    }


@click.group()
def ownership() -> None:
    """Prove that a run is one's own, or check such a proof.

    The owner makes a claim (`prove`), which shows none of its states; a checker challenges it (`check`); the owner
    opens the few states that the challenge drew (`prove` again); and the checker replays from these (`check` again).
    """


@ownership.command()
@click.argument("run", type=opt.FOLDER)
@opt.output_option("proof", "Folder of the proof.")
@click.option("--challenge", type=opt.FILE, help="Challenge file from the checker; without it, write the claim.")
@opt.key_option("Key file of the job's trainer or client, who answers.  [default: only say what an answer would open]",
            required=False)  # fmt: skip
@opt.json_option
def prove(run: Path, output: Path, challenge: Path | None, key: Path | None, as_json: bool) -> None:
    """Show that RUN is one's own, by opening a few of its states.

    First without --challenge: that writes the claim, which has neither states nor data. Send it. The checker makes a
    challenge of it (`tiebreak ownership check`). Then with --challenge and --key: that adds to the proof the state
    before each drawn segment, and the data. Look first, without --key, at what would be opened: one who has a state,
    program and data can train on from there.
    """
    opened, proof = api.reading.open_directory(run), str(output)
    if challenge is None:
        made = api.ownership.claim(opened, output)
        opt.tell({"proof": proof, "job": opened.job.id.hex(), "segments": len(made.records)}, as_json=as_json)
        return
    made, asked = api.claims.OwnershipClaim.read(output), api.claims.OwnershipChallenge.read(challenge)
    if made.run.job != opened.job:
        raise ConfigurationError(f"{proof}: expected a claim of job {opened.job.id.hex()}, got another job's")
    owner = None if key is None else load_key(key)
    steps = api.claims.opened(made, asked) if owner is None else api.ownership.answer(opened, made, asked, owner)
    opt.tell({"proof": proof, "answered": key is not None, "opened_states": steps, "data": "all"}, as_json=as_json)


@ownership.command()
@click.argument("proof", type=opt.FOLDER)
@click.option("--challenge", type=opt.NEW_FILE, required=True, help="Challenge file: written if it does not exist; "
              "otherwise PROOF has to answer it.")  # fmt: skip
@opt.number("--top", 0, MOST, 2, "For a new challenge: number of segments with the largest claimed changes.")
@opt.number("--uniform", 0, MOST, 8, "For a new challenge: number of other segments, drawn at random.")
@click.option("--model", type=MODEL, help=f"The disputed weights: {_FILES}.")
@click.option("--certificate", type=opt.FILE, help="With --model: their certificate (`tiebreak certify`).")
@click.option("--posts", type=opt.FILE, multiple=True, help="Posts of the job from a hub (see `tiebreak judge`).")
@click.option("--hub-key", type=opt.ADDRESS, help="With --posts: address of the key of that hub (GET /key).")
@opt.rpc_option(required=False)
@opt.from_block_option("With --rpc: the first block in which a head may have been posted.")
@opt.machine_options("threads", "permute", "device", "graphs")
@opt.json_option
def check(
    proof: Path, challenge: Path, top: int, uniform: int, model: Path | None, certificate: Path | None,
    posts: tuple[Path, ...], hub_key: Address | None, rpc: str | None, from_block: int, machine: Machine,
    as_json: bool,
) -> None:  # fmt: skip
    """Challenge the owner of PROOF, or check the answer.

    The first call checks the claim and writes a challenge, to be sent to the owner. When PROOF has the answer, the
    second call replays each drawn segment from its opened state, and compares every bit with the record that was
    signed. With --model it also checks that the disputed weights are what the run ended with. With --posts or --rpc it
    says when heads of the run were posted; without, a signature says who signed, and not when.

    Exit codes: 0 it holds, 2 it does not, 1 not possible as asked.
    """
    made = api.claims.OwnershipClaim.read(proof)
    if not challenge.exists():
        asked = api.claims.make_challenge(made, challenge, top, uniform)
        opt.tell({"challenge": str(challenge), **_drawn(made, asked)}, as_json=as_json)
        return
    asked = api.claims.OwnershipChallenge.read(challenge)
    if bool(posts) != (hub_key is not None):
        raise ConfigurationError("expected --posts and the --hub-key of their hub, or neither, got one")
    postings = [] if hub_key is None else api.claims.received(made, api.judging.read_transcripts(posts)[0], hub_key)
    if rpc is not None:
        postings += api.endings.heads_posted(api.boards.board_of(rpc, made.run), made.run.job.id, from_block)
    api.claims.check_posted(made, postings)
    found = api.ownership.check(made, asked, machine, model=model, certificate=certificate)
    role = "trainer" if found.signer == made.run.job.trainer else "client"
    opt.tell({
        "holds": True, "owner": f"0x{found.signer.hex()}", "role": role, **_drawn(made, asked),
        "replayed_steps": found.steps, "seconds": round(found.seconds, 3),
        "weights": "the disputed ones are the run's" if found.linked else None,
        "moved_from_first_state": f"{100 * found.moved:.3g}% of the final weights' norm",
        "posted": [f"head {one.count}: {one.when}" for one in postings] or "no witness of any time was asked",
    }, as_json=as_json)  # fmt: skip


def _drawn(made: "api.claims.OwnershipClaim", asked: "api.claims.OwnershipChallenge") -> dict[str, Any]:
    count = len(made.records)
    return {
        "job": made.run.job.id.hex(),
        "segments": count,
        "drawn": list(made.drawn(asked)),
        "unseen": [
            {"false": false, "probability": api.claims.unseen(count, asked.top, asked.uniform, false)}
            for false, _ in chances(count, 1)
        ],
    }
