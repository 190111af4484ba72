"""What client and trainer bargain over, beside what is computed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the parties bargain over. Amounts in wei, times in seconds.

    challenge_window: how long after the last head a challenge may start. clock: what each side has in one game, in all.
    replay_time: what a move that needs re-execution (a segment, a step, a long sum) may take beside it, three a side.
    descent_levels: levels of a tree that one move reveals, 1 (Truebit's binary game) to 5.
    """

    reward: int = 10**18
    trainer_stake: int = 10**18
    challenger_stake: int = 10**17
    challenge_window: int = 24 * 3600
    clock: int = 6 * 3600
    replay_time: int = 3600
    descent_levels: int = 1
    nonce: int = 0


def ether(wei: int) -> str:
    """An amount as people read it, exact: `0.25 ether`."""
    whole, rest = divmod(abs(wei), 10**18)
    digits = f"{whole:,}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if wei < 0 else ''}{digits} ether"
