"""Which games are played: a deck of cards, dealt again and again.

A mix is a list of parts with weights, `singles:6,pairs:3,honest:1`. A round deals as many games of each part as its
weight says, in an order of the seed's; the games of a part go through all its adversaries (or pairs) before one comes a
second time. So N games of a seed are the same whoever plays them, and no adversary is left to chance.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Self

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.games.line import GameLine, require_known

HONEST: Final = "honest"
SINGLES: Final = "singles"
PAIRS: Final = "pairs"
WEAKNESSES: Final = "weaknesses"
ALL: Final = "all"
PARTS_OF_ALL: Final = ((SINGLES, 6), (PAIRS, 3), (HONEST, 1))
MAX_WEIGHT: Final = 1000
_WEIGHT: Final = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repertoire:
    """What can be played, all by slugs.

    workshops: where each adversary can do what it is named for. singles: those that the rules stop. pairs: of these,
    who can join one game. weaknesses: those that the rules do not stop.
    """

    workshops: Mapping[str, tuple[str, ...]]
    singles: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    weaknesses: Sequence[str] = ()

    def common(self, adversaries: Sequence[str]) -> tuple[str, ...]:
        """The workshops in which all of the adversaries can play; of nobody, all."""
        every = dict.fromkeys(name for names in self.workshops.values() for name in names)
        return tuple(name for name in every if all(name in self.workshops[slug] for slug in adversaries))

    def groups(self, part: str) -> list[tuple[str, ...]] | None:
        """Those of whom a part of a mix takes one at a time; None for a part that is slugs."""
        if part == SINGLES:
            return [(slug,) for slug in self.singles]
        if part == WEAKNESSES:
            return [(slug,) for slug in self.weaknesses]
        if part == PAIRS:
            return list(self.pairs)
        return [()] if part == HONEST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parts and how many games of each a round has. A part is singles, pairs, honest, weaknesses, or slugs."""

    parts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}:{weight}" for name, weight in self.parts)

    @classmethod
    def parse(cls, text: str, repertoire: Repertoire) -> Self:
        """A mix as on the command line. Raises `ConfigurationError`, with what there is, for one that is none."""
        if text == ALL:
            return cls(parts=PARTS_OF_ALL)
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
        return cls(parts=tuple(parts))

    def deal(self, seed: int, game: int, repertoire: Repertoire) -> GameLine:
        """The game with this number."""
        table = GameLine(seed=seed, game=game)
        adversaries = self._adversaries(seed, game, repertoire)
        rng = table.random("terms")
        workshops = repertoire.common(adversaries)
        if not workshops:
            raise ConfigurationError(
                f"expected adversaries who can play in one workshop, got {' and '.join(adversaries)}"
            )
        return draw_terms(seed, game, adversaries, rng.choice(workshops), rng)

    def _adversaries(self, seed: int, game: int, repertoire: Repertoire) -> tuple[str, ...]:
        deck = [name for name, weight in self.parts for _ in range(weight)]
        turn, slot = divmod(game, len(deck))
        hand = [deck[card] for card in _shuffled(range(len(deck)), seed, turn, "deck")[: slot + 1]]
        name = hand[-1]
        return _member(name, seed, turn * deck.count(name) + hand.count(name) - 1, repertoire)


def _member(name: str, seed: int, count: int, repertoire: Repertoire) -> tuple[str, ...]:
    """Who plays in the game with this number among those of its part."""
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
    """A game of these adversaries under terms from the ranges worth playing."""
    return GameLine(
        seed=seed,
        game=game,
        adversaries=adversaries,
        workshop=workshop,
        auditors=rng.choice((1, 1, 1, 2, 3)),
        levels=rng.randint(1, 5),
        reward=_wei(rng, 16, 19),
        trainer_stake=_wei(rng, 16, 19),
        challenger_stake=_wei(rng, 15, 18),
        window=rng.choice((3600, 4 * 3600, 86400, 3 * 86400)),
        clock=rng.choice((600, 1800, 3600, 6 * 3600)),
        replay=rng.choice((0, 60, 600, 3600)),
    )


def _wei(rng: Random, least: int, most: int) -> int:
    """An amount between powers of ten: mostly two digits, one in five odd to the last wei."""
    amount: int = rng.randint(10, 99) * 10 ** (rng.randint(least, most) - 1)
    return amount + rng.randrange(1, 1000, 2) if rng.randrange(5) == 0 else amount
