"""The part of a job that client and trainer negotiate, as opposed to what is computed."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from tiebreak.protocol.arguments import FLAG, require_fields, whole

MAX_SECONDS: Final = 1 << 28
"""Upper bound of a job's window, deadline and the audit time of all its segments: 8.5 years."""
MAX_GAME_SECONDS: Final = 1 << 25
"""Upper bound of the length of a game, talk included: 388 days."""
MAX_GAMES: Final = 16
"""The most games of a job that may be open at once; each costs its challenger twice as much as the one before."""
MAX_WORTH: Final = 1 << (MAX_GAMES - 2)
"""The most that a false run may win or keep, in challenger's stakes.

A trainer that fills its own job with games, so that nobody else can challenge, burns at least 2^15 - 1/2 of them: twice
as much, less one.
"""
_OTHERS: Final = {"descent_levels": whole(1, 5), "finite_losses": FLAG}


def least_challenger_stake(*, reward: int, trainer_stake: int, seats: int, seat_fee: int, seat_bond: int) -> int:
    """The smallest challenger's stake, in wei, for which filling the job with games is not worth it (`MAX_WORTH`)."""
    return -(-(reward + trainer_stake + seats * (seat_fee + seat_bond)) // MAX_WORTH)


def pool_bond(least: int) -> int:
    """The smallest bond that names a pool and is no less than this, in wei: a power of two, or 0."""
    return 1 << (least - 1).bit_length() if least else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The negotiated fields of a job. Amounts are in wei, times in seconds.

    reward: paid by the client for a right run. trainer_stake, challenger_stake: what each side of a game loses if it is
    wrong.
    challenge_window: the time after the last head in which a challenge may start. clock: total time that each side has
    in one game, and for which a proof waits after its seal. replay_time: extra time for a move that needs re-execution
    (a segment, a step, a long sum), at most three per side. talk_time: how long the sides of a game may talk before
    clocks run. audit_time: how long each segment of a posted head can be audited, one after the other. deadline: how
    long after acceptance the final head must be posted. seats: receipts of audits that the client pays for.
    seat_fee: paid for each receipt. seat_bond: put up by the auditor of a seat; a power of two, or 0.
    descent_levels: levels of a tree that one move reveals, from 1 (a binary game, as in Truebit) to 5. nonce: makes two
    jobs over the same roots different; with seats, it commits to a secret of the client, and is made.
    finite_losses: whether the trainer loses its stake for a signed checkpoint whose loss is infinite or NaN, by one
    transaction and without a game; only under policy `logged`. A trainer stops before such a step. Records of steps
    between checkpoints stand under no head, so a program that checks something lets its loss be NaN from then on.

    Raises `ConfigurationError` for a negative number. What else a job needs is checked when it is agreed.
    """

    reward: int = 10**18
    trainer_stake: int = 10**18
    challenger_stake: int = 10**17
    challenge_window: int = 24 * 3600
    clock: int = 6 * 3600
    replay_time: int = 3600
    talk_time: int = 0
    audit_time: int = 3600
    deadline: int = 30 * 24 * 3600
    seats: int = 0
    seat_fee: int = 0
    seat_bond: int = 0
    descent_levels: int = 1
    nonce: int = 0
    finite_losses: bool = False

    def __post_init__(self) -> None:
        require_fields(self, **{field.name: whole(0) for field in fields(self)} | _OTHERS)

    @property
    def job_fields(self) -> dict[str, Any]:
        """The terms that are fields of a job; `finite_losses` is a bit of another."""
        return {name: value for name, value in asdict(self).items() if name != "finite_losses"}


def ether(wei: int) -> str:
    """An exact amount in readable form, such as `0.25 ether`."""
    whole, rest = divmod(abs(wei), 10**18)
    digits = f"{whole:,}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if wei < 0 else ''}{digits} ether"
