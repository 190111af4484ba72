"""The options by which a job's terms are given, and kinds of values that people write: amounts, addresses and ids."""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, Final

import click

from tiebreak.cli.options import FILE, AnyFunction, number
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import MAX_SEATS, Job
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS, Terms, ether, pool_bond
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.tags import Digest

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


class AddressType(click.ParamType[Address]):
    """An address of 20 bytes, in hex."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Accepts the address with or without 0x, in upper or lower case."""
        if isinstance(value, bytes):
            return Address(value)
        digits = str(value).removeprefix("0x")
        if len(digits) != 40 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            self.fail(f"expected an address of 40 hex digits, got {value!r}", param, ctx)
        return Address(bytes.fromhex(digits))


class DigestType(click.ParamType[Digest]):
    """The id of a job or a game, in hex."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Digest:
        """Accepts 64 hex digits, with or without 0x."""
        if not re.fullmatch("(?:0x)?[0-9a-fA-F]{64}", str(value)):
            self.fail(f"expected an id of 64 hex digits, got {value!r}", param, ctx)
        return Digest(bytes.fromhex(str(value).removeprefix("0x")))


DEFAULTS: Final = Terms()


def _term(name: str, low: int, high: int, text: str) -> Callable[[AnyFunction], AnyFunction]:
    """The option for a term that is a number."""
    return number(f"--{name.replace('_', '-')}", low, high, getattr(DEFAULTS, name), text)


def _amount(name: str, text: str, **more: Any) -> Callable[[AnyFunction], AnyFunction]:
    """The option for a term that is an amount."""
    return click.option(f"--{name.replace('_', '-')}", type=Ether(), default=getattr(DEFAULTS, name), help=text, **more)


# fmt: off
_OPTIONS: Final = (
    _amount("reward", "What the trainer earns, in ether.  [default: 1]"),
    _amount("trainer_stake", "What a lie costs.  [default: 1]"),
    _amount("challenger_stake", "What a false challenge costs.  [default: 0.1]"),
    _term("challenge_window", 1, MAX_SECONDS, "Seconds after the last head in which a challenge may start."),
    _term("clock", 1, MAX_GAME_SECONDS, "Seconds each side has in one game, in all."),
    _term("replay_time", 0, MAX_GAME_SECONDS,
        "Seconds, in addition to the clock, for a move that needs re-execution (a segment, a step, a long sum)."),
    _term("talk_time", 0, MAX_GAME_SECONDS, "Seconds that a game's sides may settle it by messages before clocks run."),
    _term("audit_time", 0, MAX_SECONDS, "Seconds in which each segment can be audited once its head is posted."),
    _term("deadline", 1, MAX_SECONDS, "Seconds after acceptance for the final head."),
    _term("seats", 0, MAX_SEATS, "Receipts of audits that the client pays for."),
    _amount("seat_fee", "What each pays its auditor, in ether."),
    _amount("seat_bond",
        "What its auditor puts up, in ether, rounded up to a power of two in wei; jobs of one bond share a pool.",
        callback=lambda _context, _option, wei: pool_bond(wei)),
    _term("descent_levels", 1, 5, "Levels of a tree that one move reveals."),
    number("--nonce", 0, None, 0,
        "Distinguishes otherwise equal jobs. With seats, the draw follows from it and the client's key."),
    click.option("--policy", "policy_file", type=FILE,
        help="Policy `logged` by this file of `tiebreak calibrate`. Such a job settles only with the "
        "client's receipts for the logs, and one segment of it is given on trust.  [default: policy exact]"),
    click.option("--precision", type=click.IntRange(MIN_PRECISION, MAX_PRECISION),
        help="Bits to which sums and functions are rounded.  [default: the policy file's, or 32]"),
    number("--chain-id", 0, None, 0, "Chain of the contract."),
    click.option("--contract", type=AddressType(), default=None, help="Contract that plays disputes.  [default: none]"),
)
# fmt: on
"""The options of a job, in the order of the help."""


def job_options(function: AnyFunction) -> AnyFunction:
    """Adds the options of commands that draft a job: its terms, its rules and its domain."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)


def show_job(job: Job) -> None:
    """Prints the parties of a job and the amounts; `tiebreak show` prints all terms."""
    click.echo(f"job     {job.id.hex()}")
    click.echo(f"client  0x{job.client.hex()}, pays {ether(job.reward)}")
    click.echo(f"trainer 0x{job.trainer.hex()}, stakes {ether(job.trainer_stake)}")
    click.echo(f"stake   {ether(job.challenger_stake)} of a challenger")
