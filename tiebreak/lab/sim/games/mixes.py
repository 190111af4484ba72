"""The choice of games: adversaries are dealt like cards from a deck.

A mix is a list of parts with weights, such as `singles:6,pairs:3,honest:1`. A round deals as many games of each part as
its weight says, in an order that depends on the seed. The games of a part go through all its adversaries (or pairs)
before one comes a second time. So the first N games of a seed are always the same, and no adversary is left to chance.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

from tiebreak.lab.sim.games.line import GameLine, require_known
from tiebreak.protocol.commitments.job import MAX_SEATS
from tiebreak.protocol.commitments.terms import least_challenger_stake, pool_bond
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.terms import MAX_STAKE_RATIO

HONEST: Final = "honest"
SINGLES: Final = "singles"
PAIRS: Final = "pairs"
ALL: Final = "all"
PARTS_OF_ALL: Final = ((SINGLES, 6), (PAIRS, 3), (HONEST, 1))
MAX_WEIGHT: Final = 1000
SEATS: Final = (0, 0, 1, 2, 4)
"""The numbers of seats of jobs, where seats change nothing about the adversaries."""
_WEIGHT: Final = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repertoire:
    """Everything that can be played, by slugs.

    workshops: the workshops in which each adversary can act as named. singles: all adversaries. pairs:
    two of these that can play in one game. seated: adversaries that can act as named in a job with seats.
    """

    workshops: Mapping[str, tuple[str, ...]]
    singles: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    seated: frozenset[str] = frozenset()

    def common(self, adversaries: Sequence[str]) -> tuple[str, ...]:
        """The workshops in which all of the adversaries can play; all workshops if there are no adversaries."""
        every = dict.fromkeys(name for names in self.workshops.values() for name in names)
        return tuple(name for name in every if all(name in self.workshops[slug] for slug in adversaries))

    def groups(self, part: str) -> list[tuple[str, ...]] | None:
        """The groups of adversaries that a part plays in turn; None if the part is a list of slugs."""
        if part == SINGLES:
            return [(slug,) for slug in self.singles]
        if part == PAIRS:
            return list(self.pairs)
        return [()] if part == HONEST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parts with the number of games that each has in a round.

    A part is `singles`, `pairs`, `honest`, or slugs joined by `+`.
    """

    parts: tuple[tuple[str, int], ...]
    rough: bool = False
    """Whether faults are injected into all games (`tiebreak.lab.sim.world.weather`)."""
    workshops: tuple[str, ...] = ()
    """The workshops of the games, if they are not the usual ones."""

    def __str__(self) -> str:
        where = f" in workshop {' or '.join(self.workshops)}" if self.workshops else ""
        return ",".join(f"{name}:{weight}" for name, weight in self.parts) + where + " in rough weather" * self.rough

    @classmethod
    def parse(
        cls, text: str, repertoire: Repertoire, *, rough: bool = False, workshops: tuple[str, ...] = ()
    ) -> Self:  # fmt: skip
        """Parse a mix from the command line. Raises `ConfigurationError`, with the valid names, for an invalid one."""
        if text == ALL:
            return cls(parts=PARTS_OF_ALL, rough=rough, workshops=workshops)
        parts = []
        for part in text.split(","):
            name, colon, weight = part.partition(":")
            if colon and not (_WEIGHT.fullmatch(weight) and int(weight) <= MAX_WEIGHT):
                raise ConfigurationError(f"expected a weight of 1...{MAX_WEIGHT} after {name}:, got {weight!r}")
            for slug in name.split("+") if repertoire.groups(name) is None else ():
                require_known(slug, repertoire.workshops)
            parts.append((name, int(weight) if colon else 1))
        names = [name for name, _ in parts]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"expected each part of a mix once, got {text!r}")
        return cls(parts=tuple(parts), rough=rough, workshops=workshops)

    def deal(self, seed: int, game: int, repertoire: Repertoire) -> GameLine:
        """The game with this number in the series of a seed."""
        table = GameLine(seed=seed, game=game)
        deck = [name for name, weight in self.parts for _ in range(weight)]
        turn, slot = divmod(game, len(deck))
        hand = [deck[card] for card in _shuffled(range(len(deck)), seed, turn, "deck")[: slot + 1]]
        name = hand[-1]
        adversaries = _member(name, seed, turn * deck.count(name) + hand.count(name) - 1, repertoire)
        rng = table.random("terms")
        workshops = repertoire.common(adversaries)
        if not workshops:
            raise ConfigurationError(
                f"expected adversaries who can play in one workshop, got {' and '.join(adversaries)}"
            )
        drawn = replace(draw_terms(seed, game, adversaries, rng.choice(workshops), rng), rough=int(self.rough))
        may_have_seats = drawn.workshop == "exact" and repertoire.seated.issuperset(adversaries)
        return replace(drawn, seats=rng.choice(SEATS)) if may_have_seats else drawn


def _member(name: str, seed: int, count: int, repertoire: Repertoire) -> tuple[str, ...]:
    """The adversaries of a part's game number `count`."""
    choices = repertoire.groups(name)
    if choices is None:
        return tuple(sorted(set(name.split("+"))))
    if not choices:
        raise ConfigurationError(f"expected a catalogue with {name}, got one without")
    turn, place = divmod(count, len(choices))
    return tuple(sorted(choices[_shuffled(range(len(choices)), seed, turn, name)[place]]))


def _shuffled(items: Sequence[int], seed: int, turn: int, purpose: str) -> list[int]:
    order = list(items)
    GameLine(seed=seed, game=0).random(f"{purpose} {turn}").shuffle(order)
    return order


def draw_terms(seed: int, game: int, adversaries: tuple[str, ...], workshop: str, rng: Random) -> GameLine:
    """A game of these adversaries, with terms drawn from the ranges worth playing."""
    auditors, levels = rng.choice((1, 1, 1, 2, 3)), rng.randint(1, 5)
    reward, trainer_stake, challenger_stake = _wei(rng, 16, 19), _wei(rng, 16, 19), _wei(rng, 15, 18)
    # The seats that an adversary may give the job: each a tenth of the reward, and the next larger bond.
    least = least_challenger_stake(
        reward=reward,
        trainer_stake=trainer_stake,
        seats=MAX_SEATS,
        seat_fee=reward // 10,
        seat_bond=pool_bond(reward // 10 + 1),
    )
    return GameLine(
        seed=seed,
        game=game,
        adversaries=adversaries,
        workshop=workshop,
        auditors=auditors,
        levels=levels,
        reward=reward,
        trainer_stake=trainer_stake,
        # A smaller one no trainer accepts, or no job has, and then there is no game.
        challenger_stake=max(challenger_stake, -(-trainer_stake // MAX_STAKE_RATIO), least),
        window=rng.choice((3600, 4 * 3600, 86400, 3 * 86400)),
        clock=rng.choice((600, 1800, 3600, 6 * 3600)),
        replay=rng.choice((0, 60, 600, 3600)),
        talk=rng.choice((0, 0, 600, 3600)),
    )


def _wei(rng: Random, least: int, most: int) -> int:
    """An amount between powers of ten, usually with two significant digits; every fifth is odd to the last wei."""
    amount: int = rng.randint(10, 99) * 10 ** (rng.randint(least, most) - 1)
    return amount + rng.randrange(1, 1000, 2) if rng.randrange(5) == 0 else amount
