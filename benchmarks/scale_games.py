"""Disputes for `benchmarks.scale`: one real step in runs of a hundred to ten million, lies of many kinds, all r."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from benchmarks import million_steps
from benchmarks.scale_workloads import FITTED
from benchmarks.table import Row
from benchmarks.workloads import gpt2
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import Compiled, compile_task
from tiebreak.engine.run.agreement import Terms, draft_job
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.chain.calls import move_call
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.game.moves import Move, Prove, Select
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.program.accumulator import leaf_count
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import Program, encode_instruction
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.games.duel import Match
from tiebreak.sim.games.local_chain import Market
from tiebreak.sim.games.long_run import StagedEvidence, StagedForgery, StagedRun, dispute
from tiebreak.sim.scale.walks import kind_of, proof_kind, shape_of
from tiebreak.sim.tampering.values import Cheat, flipped_weight_bit

RUNS: Final = ((100, 10), (10_000, 100), (1_000_000, 1000), (10_000_000, 5000))
"""Steps, and steps to a checkpoint."""
Plan = tuple[str, tuple[int, int], int, tuple[str, ...]]
EVERY: Final = ("long sum", "plain sum", "exp", "tanh", "add", "div", "weight")
PLANS: Final[tuple[Plan, ...]] = (
    ("gpt 1x32", RUNS[0], 1, ("sum", "sum")),  # twice: the first payout on a board costs more
    *(("gpt 1x32", RUNS[0], levels, ("sum",)) for levels in (2, 3, 5)),
    *(("gpt 1x32", RUNS[1], levels, ("sum",)) for levels in (2, 4)),
    *(("gpt 1x32", RUNS[2], levels, ("sum",)) for levels in (1, 3, 5)),
    ("gpt 1x32", RUNS[3], 5, ("sum",)),
    *(("mlp 3x256", RUNS[1], levels, ("sum", "weight")) for levels in (1, 5)),
    *(("gpt 4x128", RUNS[1], levels, ("sum", "weight")) for levels in (2, 5)),
    *(("gpt 1x32", RUNS[1], levels, EVERY) for levels in (2, 5)),
    ("gpt 4x128", RUNS[2], 3, ("exp", "long sum")),
)
"""Workload, run, r, lies."""
MOVED: Final = lambda value: value + 1  # noqa: E731


def lies(program: Program) -> dict[str, Cheat]:
    """One lie for each kind of leaf that costs otherwise, in the middle of a run; `step` is filled in later."""
    found: dict[str, tuple[int, int]] = {}
    for number, i in enumerate(program.body):
        product = i.opcode == Opcode.REDUCE and i.function == ReduceFunction.SUM and len(i.operands) == 2
        names = {
            "sum": product and i.terms >= 64,
            "long sum": product and i.terms >= 100,
            "plain sum": i.opcode == Opcode.REDUCE
            and i.function == ReduceFunction.SUM
            and len(i.operands) == 1
            and i.terms > 8,
            "exp": i.opcode == Opcode.MAP and i.function == MapFunction.EXP,
            "tanh": i.opcode == Opcode.MAP and i.function == MapFunction.TANH,
            "add": i.opcode == Opcode.MAP and i.function == MapFunction.ADD and i.dtype == DType.F32 and i.numel > 256,
            "div": i.opcode == Opcode.MAP and i.function == MapFunction.DIV and i.numel > 256,
        }
        for name, fits in names.items():
            if fits and (name not in found or i.numel > found[name][1]):
                found[name] = number, i.numel
    return {
        name: Cheat(name=name, gain="-", step=0, leaf=leaf, element=size * 2 // 3, change=MOVED)
        for name, (leaf, size) in found.items()
    }


@dataclass(frozen=True)
class Stage:
    """One captured workload and a market."""

    market: Market
    compiled: Compiled
    interpreter: Interpreter

    @classmethod
    def of(cls, name: str, run: tuple[int, int], market: Market) -> "Stage":
        """A workload's, captured for a run of this length."""
        compiled = compile_task(replace(FITTED[name](), steps=run[0], checkpoint_interval=run[1]))
        return cls(market, compiled, Interpreter(compiled.program, Arithmetic()))

    def play(self, cheat: Cheat, run: tuple[int, int], levels: int, nonce: int) -> Match:
        """The dispute over one lie in the middle of a run."""
        steps, interval = run
        keys = self.market.parties
        job = draft_job(
            self.compiled, steps=steps, checkpoint_interval=interval, client=keys.client.address,
            trainer=keys.trainer.address, terms=Terms(descent_levels=levels, nonce=nonce),
        )  # fmt: skip
        step = steps * 2 // 3 // interval * interval + interval // 2
        sides = [
            StagedRun(
                job=job, program=self.compiled.program, step=step, state_before=self.compiled.state,
                inputs=self.compiled.data, party=party,
            )
            for party in (b"lie", b"truth")
        ]  # fmt: skip
        forgery = StagedForgery(sides[0], self.interpreter, replace(cheat, step=step))
        return dispute(self.market, job, forgery, StagedEvidence(sides[1], self.interpreter))


def played_games() -> list[dict[str, Any]]:
    """All of them, each with all its moves."""
    market, games = Market(), []
    stages: dict[tuple[str, tuple[int, int]], Stage] = {}
    for name, run, levels, wanted in PLANS:
        if (name, run) not in stages:
            stages[name, run] = Stage.of(name, run, market)
        stage = stages[name, run]
        program = stage.compiled.program
        weight = next(
            entry for entry in program.state_spec() if entry.startswith("model.") and entry.endswith("weight")
        )
        found = {**lies(program), "weight": flipped_weight_bit(program, state=weight, step=0, element=5)}
        for lie in wanted:
            match = stage.play(found[lie], run, levels, len(games))
            click.echo(f"games: {name}, {run}, r = {levels}, {lie}: {len(match.moves)} moves", err=True)
            games.append(told(match, name, lie, program))
    return games


def told(match: Match, name: str, lie: str, program: Program) -> dict[str, Any]:
    """A game as JSON; a move is kind, nodes, siblings, zero and other bytes of calldata, bytes on the wire, gas."""
    assert match.chain is not None  # played on one
    job = match.final.job
    after = [move.before for move in match.moves[1:]] + [match.final]
    return {
        "case": f"{name}, {lie}",
        "steps": job.steps,
        "interval": job.checkpoint_interval,
        "levels": job.descent_levels,
        "body": job.body_count,
        "entries": job.state_count,
        "leaf": match.final.leaf,
        "gas_of_challenge": match.chain.start_gas,
        "moves": [
            [kind(p.before, p.move, state, program), *shape_of(p.move), *calldata(p.before, p.move), p.bytes, p.gas]
            for p, state in zip(match.moves, after, strict=True)
        ],
    }


def kind(before: GameState, move: Move, after: GameState, program: Program) -> str:
    """As `tiebreak.sim.scale.walks` names it."""
    if isinstance(move, Prove):
        return proof_kind(program.instruction_at(after.leaf))
    lands = isinstance(move, Select) and before.height == before.levels
    return kind_of(move, before.level, first=before.height == before.depth, last=lands)


def calldata(before: GameState, move: Move) -> tuple[int, int]:
    """Zero bytes and others of the transaction."""
    data = move_call(before, move).data
    return data.count(0), len(data) - data.count(0)


# ---------------------------------------------------------------- disputes to predict


def places_to_predict() -> list[dict[str, Any]]:
    """Where the lies of results/million_steps.json stand: GPT-2 124M captured, as that benchmark does, and not run."""
    program = compile_task(
        replace(gpt2(), steps=million_steps.STEPS, checkpoint_interval=million_steps.INTERVAL)
    ).program
    half = 1 << program.half_depth
    found = []
    for case, cheat in million_steps.cheats(program).items():
        target = program.instruction_at(cheat.leaf)
        has_terms = target.is_reduction and target.terms > TERMS_PER_LEAF
        reads = [program.body[operand.value] for operand in target.operands]
        found.append({
            "case": case,
            "checkpoints": million_steps.STEPS // million_steps.INTERVAL,
            "segment": million_steps.INTERVAL,
            "half_depth": program.half_depth,
            "state_depth": program.state_depth,
            "data_depth": depth_of(len(program.data_slots)),
            "instruction": encode_instruction(target).hex(),
            "reads": [
                [operand.value, int(read.dtype), *read.shape]
                for operand, read in zip(target.operands, reads, strict=True)
            ],
            "step": cheat.step,
            "interval": million_steps.INTERVAL,
            "leaf": cheat.leaf,
            "element": 0 if cheat.leaf >= half else cheat.element,
            "term_leaf": leaf_count(target.terms) // 2 if has_terms else 0,
        })  # fmt: skip
    return found


# ---------------------------------------------------------------- the life of a job


BEFORE: Final = (0, 1, 20, 100)
"""Jobs on the board before the measured one."""


def board_rows() -> Iterator[Row]:
    """Gas of each transaction of a job without a dispute, with more and more jobs on the board."""
    market = Market()
    compiled = compile_task(FITTED["mlp 2x64"]())
    keys, chain, made = market.parties, market.chain, 0
    window = Terms().challenge_window

    def life(number: int) -> dict[str, int]:
        job = draft_job(
            compiled, steps=100, checkpoint_interval=10, client=keys.client.address, trainer=keys.trainer.address,
            terms=Terms(nonce=number),
        )  # fmt: skip
        agreement = market.sign(job)
        gas = {
            "create": chain.create_job(keys.client, job, agreement.trainer_signature).gas_used,
            "accept": chain.accept_job(keys.trainer, job.id).gas_used,
        }
        for name, count in (("first head", 3), ("head", 6), ("last head", 10)):
            head = Head(job_id=job.id, count=count, run_root=job.initial_state_root)
            gas[name] = market.post(SignedHead.sign(head, agreement.domain, keys.trainer))
        chain.advance(window + 1)  # type: ignore[attr-defined]  # the market's own chain is embedded
        gas["settle"] = chain.settle(keys.client, job.id).gas_used
        gas["withdraw"] = chain.withdraw(keys.trainer).gas_used
        return gas

    for before in BEFORE:
        while made < before:
            life(made)
            made += 1
        for name, gas in life(made).items():
            yield Row(metric=f"board: {name}", case=f"after {before} jobs", value=gas, unit="gas")
        made += 1
