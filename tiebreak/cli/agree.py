"""`tiebreak agree`: client and trainer sign a captured job, in a new run directory."""

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import click

from tiebreak import api
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, number, output_option
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.commitments.terms import MAX_GAME_SECONDS, MAX_SECONDS, Terms, ether
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


DEFAULTS: Final = Terms()


@click.command()
@click.argument("captured", type=FOLDER)
@click.option("--client-key", type=FILE, required=True, help="Key file of the client.")
@click.option("--trainer-key", type=FILE, required=True, help="Key file of the trainer.")
@output_option("run", "New or empty folder for the run.")
@click.option("--reward", type=Ether(), default=DEFAULTS.reward, help="What the trainer earns, in ether.  [default: 1]")
@click.option("--trainer-stake", type=Ether(), default=DEFAULTS.trainer_stake, help="What a lie costs.  [default: 1]")
@click.option("--challenger-stake", type=Ether(), default=DEFAULTS.challenger_stake,
              help="What a false challenge costs.  [default: 0.1]")  # fmt: skip
@number("--challenge-window", 1, MAX_SECONDS, DEFAULTS.challenge_window,
        "Seconds after the last head in which a challenge may start.")  # fmt: skip
@number("--clock", 1, MAX_GAME_SECONDS, DEFAULTS.clock, "Seconds each side has in one game, in all.")
@number(
    "--replay-time", 0, MAX_GAME_SECONDS, DEFAULTS.replay_time,
    "Seconds that a move which needs re-execution (a segment, a step, a long sum) may take beside the clock.",
)  # fmt: skip
@number("--talk-time", 0, MAX_GAME_SECONDS, DEFAULTS.talk_time,
        "Seconds that a game's sides may settle it by messages before clocks run.")  # fmt: skip
@number("--audit-time", 0, MAX_SECONDS, DEFAULTS.audit_time,
        "Seconds in which each segment can be audited once its head is posted.")  # fmt: skip
@number("--deadline", 1, MAX_SECONDS, DEFAULTS.deadline, "Seconds after acceptance for the final head.")
@number("--seats", 0, MAX_SEATS, DEFAULTS.seats, "Receipts of audits that the client pays for.")
@click.option("--seat-fee", type=Ether(), default=DEFAULTS.seat_fee, help="What each pays its auditor, in ether.")
@click.option("--seat-bond", type=Ether(), default=DEFAULTS.seat_bond, help="What its auditor puts up, in ether.")
@number("--descent-levels", 1, 5, DEFAULTS.descent_levels, "Levels of a tree that one move reveals.")
@number("--nonce", 0, None, 0, "Tells equal jobs apart. Of a job with seats, the client's key and it give the draw.")
@click.option("--policy", "policy_file", type=FILE,
              help="Policy `logged` by this file of `tiebreak calibrate`. Such a job settles only with the client's "
              "receipts for the logs, and one segment of it is given on trust.  [default: policy exact]")  # fmt: skip
@click.option("--precision", type=click.IntRange(MIN_PRECISION, MAX_PRECISION),
              help="Bits to which sums and functions are rounded.  [default: the policy file's, or 32]")  # fmt: skip
@number("--chain-id", 0, None, 0, "Chain of the contract.")
@click.option("--contract", type=AddressType(), default=None, help="Contract that plays disputes.  [default: none]")
def agree(
    captured: Path, client_key: Path, trainer_key: Path, output: Path, policy_file: Path | None, precision: int | None,
    chain_id: int, contract: Address | None, **terms: int,
) -> None:  # fmt: skip
    """Sign the CAPTURED job as client and trainer, into a new run folder.

    Everything in CAPTURED is checked first. The job fixes the roots of program, initial state and data, the number of
    steps and checkpoints, rewards, stakes and clocks; both signatures bind it. This command is for when both keys are
    at hand. The run folder is what a trainer works in, and a copy of it what an auditor starts from.

    Under policy `exact` every result is the exact one, rounded. With --policy, sums near a tie go the way that the
    trainer's log says: precision and tolerances are agreed on, thresholds are each party's own, and those of the file
    are the trainer's.
    """
    run = api.runs.agree_on(
        api.bundle.load_bundle(captured),
        output,
        client=load_key(client_key),
        trainer=load_key(trainer_key),
        terms=Terms(**terms),
        domain=Domain(chain_id=chain_id, contract=api.runs.OFF_CHAIN if contract is None else contract),
        policy=policy_file,
        precision=precision,
    )
    job = run.job
    click.echo(f"job     {job.id.hex()}")
    click.echo(f"client  0x{job.client.hex()}, pays {ether(job.reward)}")
    click.echo(f"trainer 0x{job.trainer.hex()}, stakes {ether(job.trainer_stake)}")
    click.echo(f"stake   {ether(job.challenger_stake)} of a challenger")
    click.echo(f"policy  {api.running.policy_words(job)}")
    click.echo(f"run     {output}")
