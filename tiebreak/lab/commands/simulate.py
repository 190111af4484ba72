"""`tiebreak simulate`: plays games with adversaries of every kind, on the real engine and the real contract."""

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Final

import click

from tiebreak.cli.options import number, output_option
from tiebreak.engine.system import usable_cores
from tiebreak.lab.sim.games.line import MAX_GAME, MAX_SEED, WORKSHOPS
from tiebreak.lab.sim.games.mixes import ALL, HONEST, PAIRS, SINGLES
from tiebreak.lab.sim.games.runner import Json
from tiebreak.lab.sim.games.series import SUMMARY, VIOLATIONS, Series
from tiebreak.lab.sim.games.summary import PAGE, violations_of
from tiebreak.protocol.errors import ConfigurationError, VerificationError

MAX_PROCESSES: Final = 1024


class PromiseBroken(VerificationError):
    """A game broke a promise of the system, and so is a counter-example."""


@click.command()
@click.option("--games", "-n", type=click.IntRange(1, MAX_GAME + 1), default=100, show_default=True,
              help="Number of games.")  # fmt: skip
@number("--seed", 0, MAX_SEED, 0, "Determines all games, on every machine.")
@click.option("--mix", "-m", default=ALL, show_default=True, metavar="MIX",
              help=f"Games to play: {ALL}, or PART[:WEIGHT],... with a PART of {SINGLES}, {PAIRS}, {HONEST}, "
              "an adversary, or several adversaries joined by +.")  # fmt: skip
@click.option("--workshop", "-w", "workshops", type=click.Choice(WORKSHOPS), multiple=True, default=WORKSHOPS[:2],
              show_default=True, help="The computation of the games; may be given several times.")  # fmt: skip
@click.option("--rough", is_flag=True, help="Inject faults: lost, doubled and late messages; crashes; reorganisations.")
@click.option("--processes", "-j", type=click.IntRange(1, MAX_PROCESSES),
              help="Processes that play.  [default: one for each core]")  # fmt: skip
@output_option("simulation", "Folder for games.jsonl, summary.json, summary.md and violations.txt.")
@click.option("--resume", is_flag=True, help="Continue with the games that are in the folder already.")
@click.option("--replay", metavar="LINE", help="Play one game again, from its line, and tell it move by move.")
@click.option("--list", "listing", is_flag=True, help="List the adversaries, what they hope for and how they end.")
def simulate(
    games: int, seed: int, mix: str, workshops: tuple[str, ...], rough: bool, processes: int | None, output: Path,
    resume: bool, replay: str | None, listing: bool,
) -> None:  # fmt: skip
    """Play games with cheats, and check that promises are kept.

    Each game is a small training job in simulated time. A client, a trainer, auditors and a block builder have their
    own keys and use the real engine, signed messages and contract. These promises are checked in each game: honest
    parties lose nothing; a false head is not paid if an auditor watches; every adversary ends in one of the ways that
    the rules allow it; the job board holds the money that it owes; the two referees agree; a dispute finds the first
    lie; only audits that were made earn a seat's fee; and nobody signs two things in one place.

    One line of text determines a game. If a game breaks a promise, its line is printed at once and the exit code is 2.
    Use --replay LINE to play it again and watch it, and --resume to continue after an interruption.
    """
    if listing and replay is not None:
        raise ConfigurationError("expected --list or --replay, got both")
    # It brings torch and web3, for which `--help` does not wait.
    playing = import_module("tiebreak.lab.sim.games.playing")
    if listing:
        for role in playing.Role:
            kinds = {name: kind for name, kind in playing.ADVERSARIES.items() if kind.role is role}
            click.echo(f"{role.value} ({len(kinds)})")
            for name, kind in kinds.items():
                ends = ", ".join(sorted(end.value for end in kind.caught))
                click.echo(f"  {name}\n      hopes for: {kind.gain}\n      ends: {ends}")
    elif replay is not None:
        told, violations = playing.retell(replay)
        for text in told:
            click.echo(text)
        if violations:
            raise PromiseBroken(f"the game {replay!r} broke a promise: {'; '.join(violations)}")
    else:
        series = playing.deal(seed, mix, games, rough=rough, workshops=workshops)
        run(series, output, usable_cores() if processes is None else processes, resume=resume)


def run(series: Series, folder: Path, processes: int, *, resume: bool) -> None:
    """Plays a series and prints its outcome. Raises `PromiseBroken`."""
    games = series.games

    def told_before(done: int) -> None:
        if done:
            click.echo(f"{done} of {games} games were played before", err=True)

    try:
        summary = series.run(folder, processes=processes, resume=resume, on_start=told_before, on_record=_teller(games))
    except KeyboardInterrupt:
        click.echo(f"the games played so far are in {folder}; run the same command with --resume to continue", err=True)
        raise
    for line in conclusion(summary):
        click.echo(line)
    click.echo(f"see {folder / PAGE}; the same as JSON is in {folder / SUMMARY}")
    if summary["violations"]:
        for violation in summary["violations"]:
            click.echo(f"BROKEN PROMISE {violation['violation']}\n    {violation['line']}")
        broken = summary["promises"]["broken"]
        raise PromiseBroken(f"{broken} of {summary['games']} games broke a promise; see {folder / VIOLATIONS}")


def conclusion(summary: Json) -> Iterator[str]:
    """Summarises a series in a few lines."""
    played, promises = summary["played"], summary["promises"]
    yield (
        f"{summary['games']} games: {played['alone']} with one adversary, {played['together']} with several, "
        f"{played['honest']} with honest parties only"
    )
    met = sum(1 for found in summary["adversaries"].values() if found["games"])
    yield f"{summary['errors']} could not be played; {met} of {len(summary['adversaries'])} adversaries took part"
    watched = promises["false_heads"] - promises["unwatched"]
    yield f"{watched} false heads were watched by an auditor, {promises['undetected']} of them were paid"
    lost, broken = promises["honest_slashed"], promises["broken"]
    yield f"honest parties lost a stake in {lost} games, {broken} games broke a promise"
    yield f"one process plays {summary['speed']['games_per_hour']} games an hour"


def _teller(games: int) -> Callable[[Json, int], None]:
    """Prints the progress of a series about twenty times, and each broken promise at once."""
    began, played = time.monotonic(), count(1)

    def tell(record: Json, done: int) -> None:
        for violation in violations_of(record):
            click.echo(f"BROKEN PROMISE {violation}\n    {record['line']}", err=True)
        rate = 3600 * next(played) / max(1e-9, time.monotonic() - began)
        if done % max(1, games // 20) == 0 or done == games:
            click.echo(f"game {done} of {games}, {rate:,.0f} games/hour", err=True)

    return tell
