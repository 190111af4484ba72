"""`tiebreak dispute`: where a trainer's run leaves the program, and the referee's verdict."""

from pathlib import Path

import click

from tiebreak.api.running import make_interpreter
from tiebreak.cli.options import device_option, threads_option
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.moves import Side
from tiebreak.sim.games.duel import Match, play


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("replay", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--count", type=click.IntRange(1), help="Dispute the head of so many checkpoints [default: the last].")
@threads_option
@device_option
def dispute(run: Path, replay: Path, count: int | None, threads: int | None, device: str) -> None:
    """Play the verification game over a head of RUN against the auditor's REPLAY (see `tiebreak audit`).

    Both sides are played here: the defender reveals what follows from RUN, the challenger what follows from REPLAY,
    and the referee judges in integers. A trainer whose checkpoints do not follow from each other cannot answer for
    them, and the walk ends there. Exit code 0 says that a verdict was reached; it is printed. In earnest the same moves
    are signed messages or transactions (tiebreak.protocol.game.messages, tiebreak.protocol.chain).
    """
    defended, own = RunDirectory.open(run), RunDirectory.open(replay)
    if defended.job != own.job:
        raise ConfigurationError(f"expected a replay of job {defended.job.id.hex()}, got one of {own.job.id.hex()}")
    heads = {head.head.count: head for head in defended.heads()}
    chosen = max(heads, default=0) if count is None else count
    if chosen not in heads:
        raise ConfigurationError(f"expected a head of {chosen} checkpoints, got {sorted(heads)}")
    if compare(own, heads[chosen]).agrees:
        click.echo(f"nothing to dispute: head {chosen} is what the program produces")
        return
    interpreter = make_interpreter(defended.program, job=defended.job, threads=threads, device=device)
    defender, challenger = Evidence(defended, interpreter), Evidence(own, interpreter)
    show(play(defended.agreement, heads[chosen], defender, challenger))


def show(match: Match) -> None:
    """Print the walk and the verdict."""
    for s in match.selections:
        click.echo(f"{s.level.name.lower():<8}height {s.height:>3}  position {s.position}")
    verdict = match.final.verdict
    assert verdict is not None  # a finished match has one
    loser = "trainer" if match.loser is Side.DEFENDER else "challenger"
    click.echo(f"{loser} loses after {len(match.moves)} moves: {verdict.detail}")
    for name, data in (("committed", verdict.committed), ("correct", verdict.correct)):
        if data:
            click.echo(f"{name:<10}{data.hex()}")
