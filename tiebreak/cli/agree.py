"""`tiebreak agree`: the terms of a job, and the signatures of its client and its trainer, here or on two machines."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import JOB, OFFER
from tiebreak.node import settings
from tiebreak.node.parties import deliver
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import MAX_SEATS, Job
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS, Terms, ether, pool_bond
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION

MAX_CARD: Final = 1024
"""More characters than a card has, and than a path that people write."""


class _Bond(opt.Ether):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return pool_bond(super().convert(value, param, ctx))


class _Trainer(click.ParamType[Any]):
    """A key file, or the address of a trainer whose key is elsewhere."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if re.fullmatch("(?:0x)?[0-9a-fA-F]{40}", str(value)):
            return opt.ADDRESS.convert(value, param, ctx)
        if not Path(value).exists():
            self.fail(f"expected a key file, or an address of 40 hex digits, got {value!r}", param, ctx)
        return opt.FILE.convert(value, param, ctx)


_GAME: Final = click.IntRange(0, MAX_GAME_SECONDS)
_TERMS: Final[dict[str, tuple[click.ParamType[int], str]]] = {
    "reward": (opt.Ether(), "Ether that the trainer earns.  [default: 1]"),
    "trainer_stake": (opt.Ether(), "Ether that the trainer puts up, and loses for a lie.  [default: 1]"),
    "challenger_stake": (opt.Ether(), "Ether that a challenger puts up, and loses if it was wrong.  [default: 0.1]"),
    "challenge_window": (click.IntRange(1, MAX_SECONDS), "Seconds to challenge a head, and to post the next one."),
    "clock": (click.IntRange(1, MAX_GAME_SECONDS), "Seconds that each side has for all of its moves in one dispute."),
    "replay_time": (_GAME, "Seconds beyond the clock for a move that re-executes a segment, a step or a long sum."),
    "talk_time": (_GAME, "Seconds for the sides of a dispute to settle it by messages, off chain."),
    "audit_time": (click.IntRange(0, MAX_SECONDS), "Seconds of a head's window per segment up to it, if longer."),
    "deadline": (click.IntRange(1, MAX_SECONDS), "Seconds from acceptance to the final head."),
    "seats": (click.IntRange(0, MAX_SEATS), "Audits, by auditors who are drawn by lot, that the client pays for."),
    "seat_fee": (opt.Ether(), "Ether that each of these auditors earns."),
    "seat_bond": (_Bond(), "Ether that each puts up, rounded up to a power of two in wei; one bond is one pool."),
    "descent_levels": (click.IntRange(1, 5), "Tree levels revealed per dispute move; more make fewer, larger moves."),
    "nonce": (click.IntRange(0), "Distinguishes equal jobs. With seats, it and the client's key give the draw."),
}  # fmt: skip
"""The options for fields of `Terms`, in the order of the help."""
_ANSWER: Final = {"block_seconds", "step_seconds", "slowdown", "anyway", "threads", "device"}
"""The options for a trainer's answer to an offer. With `_EITHER`, all that an offer takes: the rest is agreed in it."""
_EITHER: Final = {"folder", "trainer", "policy", "as_json"}


_FINITE: Final = click.option("--finite-losses", is_flag=True, help="Policy `logged`: a signed checkpoint whose loss "
                              "is infinite or NaN costs the trainer its stake, without a dispute.")  # fmt: skip
_job_options: Final = opt.options_for("terms", Terms, {
    name: click.option(f"--{name.replace('_', '-')}", type=kind, default=getattr(Terms(), name),
                       show_default=isinstance(kind, click.IntRange), help=text)
    for name, (kind, text) in _TERMS.items()
} | {"finite_losses": _FINITE})  # fmt: skip
"""Options for the job's `terms`."""


@click.command("agree")
@click.argument("folder", type=opt.FOLDER)
@click.option("--client", type=click.Path(exists=True, path_type=Path), help="Key file of the client, who pays; or the "
              "folder of a client (`tiebreak client init`), which takes the offer, at once if it runs.")  # fmt: skip
@click.option("--trainer", type=_Trainer(), metavar="FILE|ADDRESS", help="Key file of the trainer, who "
              "signs; or its address, for an offer that it signs elsewhere.")  # fmt: skip
@click.option("--output", "-o", type=opt.NEW_FOLDER, help="New or empty folder.  [default: run, or offer]")
@click.option("--policy", type=opt.FILE, help="Policy `logged` by this file of `tiebreak calibrate`; such a job "
              "settles only with the client's receipts for the logs. In answer to an offer: your own thresholds.  "
              "[default: policy exact; of your own thresholds, the proven bounds]")  # fmt: skip
@click.option("--precision", type=click.IntRange(MIN_PRECISION, MAX_PRECISION),
              help="Bits to which sums and functions are rounded.  [default: the policy file's, or 32]")  # fmt: skip
@click.option("--seal-to", multiple=True, metavar="CARD",
              help="Encrypt the published files of an offer to this reader: a card (`tiebreak key --card`) or a file "
              "that holds one. May be repeated; the client is always among them.")  # fmt: skip
@click.option("--auditor", "auditors", type=opt.ADDRESS, multiple=True, help="Account of an auditor for the client's "
              "folder to name: without a chain, no stranger keeps it from a challenge. May be repeated.")  # fmt: skip
@opt.domain_options
@_job_options
@opt.number("--block-seconds", 1, 3600, 12, "Offers: seconds between blocks of the chain that the job is for.")
@click.option("--step-seconds", type=click.IntRange(1),
              help="Offers: seconds that a step takes on your machine.  [default: it is measured here]")  # fmt: skip
@opt.number("--slowdown", 1, 10_000, 1, "Offers: factor by which the worst data slow a step (tiebreak worst).")
@click.option("--anyway", is_flag=True, help="Offers: sign although honest work could lose your stake.")
@opt.machine_options("threads", "device")
@opt.json_option
def agree(
    folder: Path, client: Path | None, trainer: Path | Address | None, output: Path | None, policy: Path | None,
    machine: Machine, as_json: bool, block_seconds: int, step_seconds: int | None, slowdown: int, anyway: bool,
    **drafted: Any,
) -> None:  # fmt: skip
    """Sign a job over a captured task: both parties, or one at a time.

    FOLDER is a captured task, or an offer. Everything in it is checked first. A job fixes the roots of program, initial
    state and data, the number of steps and checkpoints, rewards, stakes and clocks; `tiebreak economics` recommends
    terms. Both signatures bind it. The run folder that comes of it is what a trainer works in, and a copy of it what an
    auditor starts from. A client alone is bound to nothing: on a chain it pays when it creates the job there.

    \b
    tiebreak agree captured --client client.pem --trainer trainer.pem    a run
    tiebreak agree captured --client client.pem --trainer 0x...          an offer
    tiebreak agree offer                          the trainer judges its terms
    tiebreak agree offer --trainer trainer.pem    and signs them: a run

    Give the folder of an offer to its trainer, or publish it on a hub; a running client does the rest by itself. The
    trainer's signature makes a run of it: send `job.bin` back to the client, whose copy it makes one as well. A trainer
    judges an offer by how long a start and a step take on its machine: windows must leave time for the slowest data
    that a client can choose, and clocks for the longest game. Terms that could cost an honest trainer its stake are not
    signed.

    Under policy `exact` every result is the exact one, rounded. With --policy, sums near a tie go the way that the
    trainer's log says: precision and tolerances are agreed on, thresholds are each party's own, and one segment is
    given on trust. With --seal-to a hub sees ciphertext; sizes, losses and heads stay visible, the trainer must read
    what it trains, and in the folder here nothing is encrypted.
    """  # noqa: D301 (click takes \b for the begin of lines that are not wrapped)
    known = {parameter.name or "" for parameter in agree.params}
    if (folder / OFFER).exists() or (folder / JOB).exists():
        opt.refuse(known - _ANSWER - _EITHER, "no terms or parties with an offer, which has its own")
        if isinstance(trainer, bytes):
            raise ConfigurationError("expected the trainer's key file to sign an offer, got an address")
        own = replace(machine, policy=policy)
        _answer(folder, trainer, own, block_seconds, step_seconds, slowdown, anyway=anyway, as_json=as_json)
        return
    opt.refuse(_ANSWER, "options for an answer only with the folder of an offer")
    if client is None or trainer is None:
        raise ConfigurationError("expected --client and --trainer, each with a key file or who it is, got not both")
    _draft(folder, client, trainer, output, policy=policy, as_json=as_json, **drafted)


def _draft(
    captured: Path, client: Path, trainer: Path | Address, output: Path | None, *, seal_to: Sequence[str],
    auditors: Sequence[Address], as_json: bool, **agreed: Any,
) -> None:  # fmt: skip
    """Drafts a job and signs it for its client, and for its trainer if the key is here. agreed: for `offers.draft`."""
    own = client if client.is_dir() else None
    if own is not None:
        client = own / settings.read("client", own).key
    if auditors and own is None:
        raise ConfigurationError("expected --auditor with the folder of a client, got a key file")
    bundle = api.bundle.load_bundle(captured)
    if isinstance(trainer, Path):
        if seal_to or own is not None:
            raise ConfigurationError("expected the trainer's address for an offer, got its key")
        output, payer = output or Path("run"), load_key(client)
        job = api.runs.agree_on(bundle, output, client=payer, trainer=load_key(trainer), **agreed).job
        place = "run"
    else:
        output, readers = output or Path("offer"), [_card(text) for text in seal_to]
        made = api.offers.offer_on(bundle, output, client=load_key(client), trainer=trainer, readers=readers, **agreed)
        job, place = made.job, "offer"
        if own is not None:
            deliver(output, own, auditors)
    opt.tell({**_document(job), place: str(output)}, as_json=as_json)


def _card(text: str) -> Any:
    """The card in a file of this name, or else in the text itself."""
    path = Path(text)
    is_file = len(text) < MAX_CARD and path.is_file()
    return api.sealing.Card.read(path.read_text("ascii", "replace")[:MAX_CARD] if is_file else text)


def _answer(
    folder: Path, key: Path | None, machine: Machine, block_seconds: int, step_seconds: int | None, slowdown: int,
    *, anyway: bool, as_json: bool,
) -> None:  # fmt: skip
    """Checks an offer's terms, and signs it if the trainer's key is given and there are no objections."""
    offered = api.reading.open_offer(folder)
    seconds, start, began = float(step_seconds or 0), 0.0, time.monotonic()
    if step_seconds is None:
        seconds = api.offers.seconds_per_step(offered, machine)
        start = time.monotonic() - began - seconds
    pace = api.offers.pace_of(seconds, block_seconds=block_seconds, slowdown=slowdown, start=start)
    reasons = api.offers.objections(offered, pace)
    document = {
        **_document(offered.job),
        "step_seconds": float(f"{seconds:.3g}"),
        "start_seconds": float(f"{start:.3g}"),
        "slowdown": slowdown,
        "objections": list(reasons),
        "signed": None,
    }
    refused = bool(reasons) and key is not None and not anyway
    if key is not None and not refused:
        run = api.offers.accept(folder, load_key(key), machine.policy)
        document |= {"signed": f"0x{run.agreement.trainer_signature.hex()}", "to_the_client": str(folder / "job.bin")}
    if not as_json and not reasons:
        document["objections"] = "none: the terms leave an honest trainer enough time"
    opt.tell(document, as_json=as_json)
    if refused:
        raise ConfigurationError("expected terms by which honest work keeps its stake, got others; nothing is signed")


def _document(job: Job) -> dict[str, Any]:
    """The parties of a job, its amounts and its rules; `tiebreak show --long` prints all terms."""
    return {
        "job": job.id.hex(),
        "client": f"0x{job.client.hex()}",
        "reward": ether(job.reward),
        "trainer": f"0x{job.trainer.hex()}",
        "trainer_stake": ether(job.trainer_stake),
        "challenger_stake": ether(job.challenger_stake),
        "policy": api.reading.policy_words(job),
    }
