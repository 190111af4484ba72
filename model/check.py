"""Checks the models of games, one and many, of talks and of the job board with SPIN, and that each check can fail.

    python model/check.py           every property of the models, exhaustively within their bounds; each rule left
                                    out: SPIN must find the harm; each outcome is reachable
    python model/check.py --quick   the same without the properties whose bounds are large

Needs `spin` (6.5) and a C compiler. Nothing of the product does.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
MEMORY_MB: Final = 4000
DEPTH: Final = 10_000
SECONDS: Final = 600
"""The time after which a search says that it goes on; there is no limit, as machines may be slow."""
JOBS: Final = 2
"""Runs at a time, each of which may take `MEMORY_MB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One verification: a model, its defines, and whether SPIN has to find an error.

    A large one is compiled with optimization, which otherwise takes longer than it saves.
    """

    model: str
    what: str
    defines: tuple[str, ...] = ()
    fails: bool = False
    is_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The figures that SPIN printed."""

    errors: int
    states: int
    depth: int
    megabytes: float
    seconds: float
    complaint: str = ""


PROPERTIES: Final = (
    Run(model="board", what="three games, clocks of 1", defines=("GAMES 3", "CLOCK 1"), is_large=True),
    Run(model="board", what="policy logged, two games, clocks of 2", defines=("LOGGED",), is_large=True),
    Run(
        model="board",
        what="finite losses demanded, clocks of 1",
        defines=("LOGGED", "FINITE_LOSSES", "CLOCK 1"),
        is_large=True,
    ),
    Run(model="game", what="one game, clocks of 3", defines=("CLOCK 3",), is_large=True),
    Run(model="board", what="two games, clocks of 3", defines=("CLOCK 3",), is_large=True),
    Run(model="talk", what="a talk of 4, clocks of 3", defines=("TALK 4", "CLOCK 3"), is_large=True),
    Run(model="crowd", what="four games open at once, of five", defines=("GAMES 4",), is_large=True),
    Run(model="game", what="one game, trees of 8 leaves, clocks of 2"),
    Run(model="board", what="two games, clocks of 2"),
    Run(model="talk", what="a talk of 2, clocks of 2"),
    Run(model="seats", what="a replay of 3, windows of 2"),
    Run(model="seats", what="a replay of 2, windows of 3", defines=("REPLAY 2", "WINDOW 3")),
    Run(model="crowd", what="three games open at once, of five"),
    Run(model="crowd", what="two games open at once, of five, replays of 3", defines=("GAMES 2", "REPLAYS 3")),
)
"""The longest first, so that two at a time end together."""

MUTANTS: Final = tuple(
    Run(model=model, what=what, defines=tuple(define.split(", ")), fails=True)
    for model, define, what in (
        ("game", "MUTANT_LATE_MOVES", "a move after its maker's clock"),
        ("game", "MUTANT_EARLY_TIMEOUT", "timeout with nothing left, but nothing over"),
        ("game", "MUTANT_NO_ALLOWANCE", "replays at the cost of the clock"),
        ("game", "MUTANT_ANY_LIE", "the challenger takes a lie that is not the first"),
        ("game", "MUTANT_NO_TIE_DESCEND", "nodes need not fold to the node above"),
        ("game", "MUTANT_NO_TIE_STEPS", "the last record need not be the checkpoint"),
        ("game", "MUTANT_NO_TIE_VALUES", "loss and state need not be the record's"),
        ("game", "MUTANT_NO_TIE_TERMS", "the last accumulator need not round to the claim"),
        ("game", "MUTANT_ANY_ELEMENT", "partial sums that name no element, of another one than was selected"),
        ("game", "MUTANT_PADDING_CONVICTS", "the defender loses at padding, whatever is there"),
        ("game", "MUTANT_PADDING_ACQUITS", "the defender wins at padding, whatever is there"),
        ("talk", "MUTANT_ENTER_LATE", "a state enters after the talk"),
        ("talk", "MUTANT_ENTER_OLDER", "a state enters over one after more moves"),
        ("talk", "MUTANT_ENTER_UNSIGNED", "a state enters without the other side's signature"),
        ("talk", "MUTANT_ENTER_STARTS_CLOCKS", "entering ends the talk, and a clock with it"),
        ("talk", "MUTANT_TALK_COSTS, TALK 3", "the clocks run while the sides talk, for longer than a clock"),
        ("talk", "MUTANT_SIGN_EVERY_LINE", "the honest side signs on whatever line stands on the chain"),
        ("board", "MUTANT_NO_SEAL", "a proof needs no seal"),
        ("board", "MUTANT_SEAL_WITHOUT_GAME", "a seal counts in every game"),
        ("board", "MUTANT_SAME_INSTANT", "a proof in the block of its seal"),
        ("board", "MUTANT_SETTLE_OVER_GAMES", "settle with a game open"),
        ("board", "MUTANT_ABANDON_OVER_GAMES", "abandon with a game open"),
        ("board", "MUTANT_LATE_HEADS", "a head counts until somebody abandons, for which no game may be open"),
        ("board", "MUTANT_SETTLE_EARLY", "settle at the last instant of the window"),
        ("board", "MUTANT_NO_AUDIT_TIME", "games start within a window of the last head only"),
        ("board", "MUTANT_AUDIT_ONCE", "the audit time of all segments counts from the acceptance"),
        ("board", "MUTANT_NO_DEADLINE", "a head for each window is enough"),
        ("board", "MUTANT_SLASH_TWICE", "a slashed job stays active"),
        ("board", "MUTANT_RECLAIM_TWICE", "a stake reclaimed more than once"),
        ("board", "MUTANT_FLAT_REFUND", "a doubled stake comes back as one"),
        ("board", "MUTANT_WITHDRAW_TWICE", "a credit is kept when it is withdrawn"),
        ("board", "MUTANT_NO_WAIT", "a proof in the block after its seal's, while builders leave one out"),
        ("board", "DELAY CLOCK", "builders leave a proof out of the blocks for a clock"),
        ("board", "MUTANT_ABANDON_LOGGED, LOGGED", "abandon where all heads have receipts, however late these came"),
        ("board", "MUTANT_SETTLE_WITHOUT_RECEIPT, LOGGED", "a job of policy logged settles without its receipts"),
        ("board", "MUTANT_PART_EARLY, LOGGED", "part before the window is over"),
        ("board", "MUTANT_PART_OVER_GAMES, LOGGED", "part with a game open"),
        (
            "board",
            "MUTANT_NO_PART_AT_FIRST, LOGGED, FINITE_LOSSES, CLOCK 1",
            "no way out of a program whose first segment has a forbidden loss",
        ),
        ("seats", "MUTANT_SEAL_AFTER_OPENING", "a root sealed after the head was opened"),
        ("seats", "MUTANT_DRAW_GIVES_NO_TIME", "the time for audits counts from the final seal"),
        ("seats", "MUTANT_CLAIM_TWICE", "a seal is kept when it is claimed"),
        ("seats", "MUTANT_CLOSE_EARLY", "seats closed while they can be claimed"),
        ("seats", "MUTANT_SLASH_TAKES_BONDS", "a slash takes the bonds of those who agreed"),
        ("seats", "MUTANT_UNDRAWN_FEES_BACK", "the fees of a settled job go back without a draw"),
        ("seats", "MUTANT_SETTLE_SEALED", "a job settles with its head sealed"),
        ("crowd", "MUTANT_FLAT_ALLOWANCE", "one replay's time, however many games are open"),
        ("crowd", "MUTANT_CROWD_NOW", "a replay's time for each game that is open when the move is judged"),
        ("crowd", "MUTANT_CROWD_AT_START", "a replay's time for each game that was open when the game started"),
        ("crowd", "MUTANT_CROWD_FALLS", "the crowd falls when a game starts among fewer"),
        ("crowd", "MUTANT_ANY_ORDER", "the trainer does not replay first come, first served"),
        ("crowd", "MUTANT_REPLAYS_FOR_NOBODY", "the trainer goes on with the replay of a game that is over"),
    )
)

WITNESSES: Final = tuple(
    Run(model=model, what=f"reached: {expression}", defines=(f"WITNESS ({expression})", *defines), fails=True)
    for model, expression, *defines in (
        ("game", "honest == DEFENDER && reason == RECOMPUTED"),
        ("game", "honest == DEFENDER && reason == PADDING"),
        ("game", "honest == DEFENDER && reason == TIMEOUT"),
        ("game", "honest == CHALLENGER && reason == RECOMPUTED && level == VALUES"),
        ("game", "honest == CHALLENGER && reason == RECOMPUTED && level == TERMS"),
        ("game", "honest == CHALLENGER && reason == RECOMPUTED && level == CHUNKS"),
        ("game", "honest == CHALLENGER && reason == PADDING && level == VALUES"),
        ("game", "honest == NOBODY && winner == DEFENDER && nodeLies && reason == RECOMPUTED"),
        ("talk", "honest == CHALLENGER && reason == RECOMPUTED && entered && !left"),
        ("talk", "honest == CHALLENGER && reason == RECOMPUTED && stale && left"),
        ("talk", "honest == DEFENDER && reason == RECOMPUTED && stale"),
        ("talk", "honest == DEFENDER && reason == TIMEOUT && left"),
        ("talk", "honest == CHALLENGER && reason == FORKED"),
        ("talk", "honest == NOBODY && reason == RECOMPUTED && entered"),
        ("board", "trainerHonest && status == SETTLED && credit[TRAINER] > REWARD + TRAINER_STAKE"),
        ("board", "games[0].verdict == DEFENDER_LOST && games[1].verdict == VOID"),
        ("board", "games[0].verdict == VOID && computes"),
        ("board", "status == ABANDONED"),
        ("board", "status == CANCELLED"),
        ("board", "trainerHonest && status == PARTED && headCount == 0", "LOGGED", "FINITE_LOSSES", "CLOCK 1"),
        ("seats", "trainerHonest && status == SETTLED && credit[HONEST] == BOND + FEE"),
        ("seats", "status == SLASHED && isOpened && credit[HONEST] == BOND + FEE + 2 * SHARE"),
        ("seats", "status == SLASHED && head == TRUE_ROOT && credit[HONEST] == BOND"),
        ("seats", "status == ABANDONED && credit[HONEST] == BOND + FEE"),
        ("seats", "status == SETTLED && head == FALSE_ROOT && !isDrawn"),
        ("crowd", "waitedForAll"),
        ("crowd", "dropped"),
        ("crowd", "fell"),
    )
)


def require_tools() -> None:
    """Say what to install before anything fails for want of it."""
    missing = [name for name in ("spin", "cc") if shutil.which(name) is None]
    if missing:
        hint = "on Debian: apt-get install spin gcc libc6-dev"
        sys.exit(f"expected spin 6.5 and a C compiler on PATH, found no {' and no '.join(missing)}; {hint}")


def command(arguments: list[str], folder: Path) -> str:
    """Run one tool in a folder, however long it takes, and return its output."""
    start = time.monotonic()
    with subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        printed = None
        while printed is None:
            try:
                printed, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                print(f"{Path(arguments[0]).name} goes on after {time.monotonic() - start:.0f} s", file=sys.stderr)
    if process.returncode:
        sys.exit(f"expected {arguments[0]} to succeed, got exit status {process.returncode}:\n{printed}")
    return printed


def verify(run: Run, folder: Path) -> Iterator[Result]:
    """Assertions and deadlocks in one search, "it ends" in another: under a claim, a search stops where it holds."""
    model = (HERE / f"{run.model}.pml").read_text()
    (folder / "model").write_text("".join(f"#define {define}\n" for define in run.defines) + model)
    command(["spin", "-a", "model"], folder)
    for flags, options in ((("-DSAFETY", "-DNOCLAIM"), ()), ((), ("-a",))):
        command(["cc", "-O2" if run.is_large else "-O0", f"-DMEMLIM={MEMORY_MB}", *flags, "-o", "pan", "pan.c"], folder)
        start = time.perf_counter()
        printed = command([str(folder / "pan"), f"-m{DEPTH}", *options], folder)
        result = read(printed, time.perf_counter() - start)
        yield replace(result, complaint=complaint(run, model, folder)) if result.errors else result


def complaint(run: Run, model: str, folder: Path) -> str:
    """The assertion that failed, as the model has it, found by replaying the trail."""
    replayed = command(["spin", "-t", "model"], folder)
    line = re.search(r"spin: \S+:(\d+), Error: assertion violated", replayed)
    return model.splitlines()[int(line[1]) - len(run.defines) - 1].strip() if line else "stuck, or for ever"


def read(printed: str, seconds: float) -> Result:
    """The verifier's figures. A search that was cut short is no result."""
    for cut in ("max search depth too small", "out of memory", "reached -DMEMLIM", "Search not completed"):
        if cut in printed and "errors: 0" in printed:
            sys.exit(f"expected a whole search, got one that was cut short:\n{printed}")
    figures = re.search(r"depth reached (\d+), errors: (\d+)\s+(\d+) states, stored", printed)
    memory = re.search(r"([\d.]+)\s+total actual memory usage", printed)
    if figures is None or memory is None:
        sys.exit(f"expected the verifier's figures, got:\n{printed}")
    depth, errors, states = (int(figure) for figure in figures.groups())
    return Result(
        errors=errors,
        states=states,
        depth=depth,
        megabytes=float(memory[1]),
        seconds=seconds,
    )


def check(run: Run) -> tuple[bool, str]:
    """Whether SPIN's answer is the one expected, and its figures, a line for each search."""
    is_right, lines = not run.fails, []
    with tempfile.TemporaryDirectory() as folder:
        for name, result in zip(("safety", "ends"), verify(run, Path(folder)), strict=False):
            line = f"{run.model:5} {run.what:66} {name:6} {result.states:>10,} states, depth {result.depth:>4}"
            lines.append(f"{line}, {result.megabytes:5.0f} MB, {result.seconds:5.1f} s  {result.complaint}")
            if result.errors:
                is_right = run.fails
                break
    return is_right, "\n".join(lines)


def main() -> None:
    """Exit with the first unexpected answer named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the properties whose bounds are large")
    is_quick = parser.parse_args().quick
    runs = [run for run in (*PROPERTIES, *MUTANTS, *WITNESSES) if not (is_quick and run.is_large)]
    require_tools()
    wrong = []
    with ThreadPoolExecutor(JOBS) as pool:
        for run, (is_right, figures) in zip(runs, pool.map(check, runs), strict=True):
            print(figures, flush=True)
            if not is_right:
                wrong.append(run)
    for run in wrong:
        expected, got = ("an error", "none") if run.fails else ("no error", "one")
        print(f"expected {expected}, got {got}: {run.model}, {run.what} {run.defines}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"{len(runs)} passed, 0 failed")


if __name__ == "__main__":
    main()
