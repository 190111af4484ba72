"""The cost of a dispute: a sum in TF32 in the image job, walked down to four terms, for r = 1 ... 5 levels per move.

Gas is a transaction's whole gas on the embedded chain: base cost, calldata (EIP-7623), execution.
"""

import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console

from benchmarks.table import Row, placed, publish
from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.lab.sim.adversaries.tampering import flipped_weight_bit, long_sums, low_precision_sum
from tiebreak.lab.sim.games.disputes import Arena, ChainMatch, DisputeMarket, another, fight, fork
from tiebreak.protocol.game.moves import kind_name

MOVE_TARGET, LEAF_TARGET = "65-90k (Cartesi PRT)", "103-128k (Cartesi PRT, leaf)"
MATCH_TARGET = "9.5M (Cartesi PRT, 92 rounds)"


def arena(folder: Path) -> Arena:
    """An honest run of the image job on a market of its own."""
    task = load_task("digits")
    captured = capture_task(task)
    market = DisputeMarket()
    job = market.draft(captured, steps=task.steps, checkpoint_interval=task.checkpoint_interval)
    agreement = market.sign(job)
    interpreter = Interpreter(captured.program, Arithmetic())
    run = RunDirectory.create(folder / "honest", agreement, captured.program, captured.state, captured.data)
    Worker(run, interpreter, key=market.parties.trainer).work()
    return Arena(market, run, fork(run, folder / "replay", agreement, upto=job.steps), interpreter, folder)


@click.command()
@placed
def main(folder: Path) -> None:
    """Play one dispute for each r, and one that ends at a commit."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        place = arena(Path(name))
        program, job = place.run.program, place.run.job
        index = next(n for n in long_sums(program, 64) if program.body[n].numel > 64)
        cheat = low_precision_sum(step=job.steps - 3, index=index, element=17)
        for levels in range(1, 6):
            Console().print(f"playing r = {levels}")
            fought = fight(place, cheat, replace(another(job), descent_levels=levels), f"r{levels}")
            rows += match_rows(f"sum, r = {levels}", fought.match)
            again = fought.replayed_steps
            rows.append(Row(metric="steps executed again", case=f"sum, r = {levels}", value=again, unit="steps"))
        weight = next(n for n in program.state_spec() if n.endswith("head.weight"))
        flip = flipped_weight_bit(program, state=weight, step=job.last_step(2), element=0)
        fought = fight(place, flip, another(job), "commit")
        rows += match_rows("weight bit, r = 1", fought.match)
    publish("dispute", rows, "one cheat walked down to one leaf; 72 steps, checkpoints every 12", folder=folder)


def match_rows(case: str, match: ChainMatch) -> list[Row]:
    """Rows with the median gas of each kind of move, and totals."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for played in match.moves:
        by_kind[kind_name(played.move)].append(played.gas or 0)
    rows = [
        Row(metric=f"gas: {kind}", case=case, value=statistics.median(gas), unit="gas",
            target=LEAF_TARGET if kind == "prove" else MOVE_TARGET)
        for kind, gas in by_kind.items()
    ]  # fmt: skip
    start = match.chain.start_gas
    total = start + sum(sum(gas) for gas in by_kind.values())
    rows += [
        Row(metric="gas: challenge", case=case, value=start, unit="gas"),
        Row(metric="gas in all", case=case, value=total, unit="gas", target=MATCH_TARGET),
        Row(metric="transactions", case=case, value=1 + sum(map(len, by_kind.values())), unit=""),
        Row(metric="bytes of messages", case=case, value=sum(p.bytes for p in match.moves), unit="bytes"),
    ]
    return rows


if __name__ == "__main__":
    main()
