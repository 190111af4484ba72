"""The options by which a job's terms are given, and kinds of values that people write: amounts, addresses and ids."""

import re
from decimal import Decimal, InvalidOperation
from functools import wraps
from typing import Any, Final

import click

from tiebreak import api
from tiebreak.cli.options import FILE, AnyFunction, number, options
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Domain
from tiebreak.protocol.commitments.job import MAX_SEATS, Job
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS, Terms, ether, pool_bond
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION

WEI: Final = 10**18


class Ether(click.ParamType[int]):
    """An amount in ether as people write it (0.25), converted to whole wei."""

    name = "ether"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts exactly, and refuses an amount with a fraction of a wei."""
        if isinstance(value, int):
            return value
        try:
            wei = Decimal(value) * WEI
        except InvalidOperation:
            self.fail(f"expected an amount such as 0.25, got {value!r}", param, ctx)
        if not wei.is_finite() or wei < 0 or wei != wei.to_integral_value():
            self.fail(f"expected an amount >= 0 in whole wei, got {value!r}", param, ctx)
        return int(wei)


class _Hex(click.ParamType[Any]):
    """Bytes in hex digits of upper or lower case, with or without 0x."""

    what: str
    digits: int

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        if not re.fullmatch(f"(?:0x)?[0-9a-fA-F]{{{self.digits}}}", str(value)):
            self.fail(f"expected {self.what} of {self.digits} hex digits, got {value!r}", param, ctx)
        return bytes.fromhex(str(value).removeprefix("0x"))


class AddressType(_Hex):
    name, what, digits = "address", "an address", 40


class DigestType(_Hex):
    """A click type for the id of a job or a game: 64 hex digits."""

    name, what, digits = "id", "an id", 64


class _Bond(Ether):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return pool_bond(super().convert(value, param, ctx))


_ETHER: Final = Ether()
_TERMS: Final[dict[str, tuple[click.ParamType[int], str]]] = {
    "reward": (_ETHER, "What the trainer earns, in ether.  [default: 1]"),
    "trainer_stake": (_ETHER, "What the trainer puts up, in ether, and loses for a lie.  [default: 1]"),
    "challenger_stake": (_ETHER, "What a challenger puts up, in ether, and loses if it was wrong.  [default: 0.1]"),
    "challenge_window": (
        click.IntRange(1, MAX_SECONDS), "Seconds in which a head can be challenged, and the next one has to be posted."
    ),
    "clock": (click.IntRange(1, MAX_GAME_SECONDS), "Seconds that each side has for all of its moves in one dispute."),
    "replay_time": (
        click.IntRange(0, MAX_GAME_SECONDS),
        "Seconds, in addition to the clock, for a move that needs re-execution (a segment, a step, a long sum).",
    ),
    "talk_time": (
        click.IntRange(0, MAX_GAME_SECONDS), "Seconds for the sides of a dispute to settle it by messages, off chain."
    ),
    "audit_time": (
        click.IntRange(0, MAX_SECONDS), "Seconds of a head's window for each segment up to it, if that is longer."
    ),
    "deadline": (click.IntRange(1, MAX_SECONDS), "Seconds from acceptance to the final head."),
    "seats": (click.IntRange(0, MAX_SEATS), "Audits, by auditors who are drawn by lot, that the client pays for."),
    "seat_fee": (_ETHER, "What each of these auditors earns, in ether."),
    "seat_bond": (
        _Bond(),
        "What each of them puts up, in ether, rounded up to a power of two in wei; jobs of one bond share a pool.",
    ),
    "descent_levels": (click.IntRange(1, 5), "Levels of a tree that a move reveals; more make fewer, larger moves."),
    "nonce": (
        click.IntRange(0), "Distinguishes otherwise equal jobs. With seats, it and the client's key give the draw."
    ),
}  # fmt: skip
"""The options for fields of `Terms`, in the order of the help."""
_OTHERS: Final = (
    click.option("--policy", "policy_file", type=FILE, help="Policy `logged` by this file of `tiebreak calibrate`. "
                 "Such a job settles only with the client's receipts for the logs, and one segment of it is given on "
                 "trust.  [default: policy exact]"),
    click.option("--precision", type=click.IntRange(MIN_PRECISION, MAX_PRECISION),
                 help="Bits to which sums and functions are rounded.  [default: the policy file's, or 32]"),
    number("--chain-id", 0, None, 0, "Id of the chain that the job is on; 0: none."),
    click.option("--contract", type=AddressType(), help="Address of the job board on that chain.  [default: none]"),
)  # fmt: skip


def job_options(function: AnyFunction) -> AnyFunction:
    """Options of commands that draft a job. They get its `terms` and its `domain`, and options for its rules."""

    @wraps(function)
    def called(**given: Any) -> Any:
        terms = Terms(**{name: given.pop(name) for name in _TERMS})
        domain = Domain(chain_id=given.pop("chain_id"), contract=given.pop("contract") or OFF_CHAIN.contract)
        return function(terms=terms, domain=domain, **given)

    terms = (
        click.option(f"--{name.replace('_', '-')}", type=kind, default=getattr(Terms(), name),
                     show_default=isinstance(kind, click.IntRange), help=text)
        for name, (kind, text) in _TERMS.items()
    )  # fmt: skip
    return options(*terms, *_OTHERS)(called)


def job_document(job: Job) -> dict[str, Any]:
    """The parties of a job, its amounts and its rules; `tiebreak show` prints all terms."""
    return {
        "job": job.id.hex(),
        "client": f"0x{job.client.hex()}",
        "reward": ether(job.reward),
        "trainer": f"0x{job.trainer.hex()}",
        "trainer_stake": ether(job.trainer_stake),
        "challenger_stake": ether(job.challenger_stake),
        "policy": api.reading.policy_words(job),
    }
