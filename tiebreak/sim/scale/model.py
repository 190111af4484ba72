"""The cost model: fits to what was measured, formulas for what can be counted, and both put together for a job.

Fitted: seconds of a step (plain, exact, and the one of a dispute whose values are hashed) to its instructions,
products, other terms and elements; seconds of hashing and writing a state to its tensors and bytes; seconds of an
accumulator tree to its terms; peak memory to the bytes of the state and of the values alive; bytes of a rounding log to
the elements that are logged and their terms; gas of a move to its kind and to what it shows. Counted: moves, bytes of
messages and calldata, records, states, steps that a dispute executes again.

All seconds are CPU seconds of one core of the machine that was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import Final

from tiebreak.engine.run.directory import RECORD_BYTES
from tiebreak.engine.run.retention import ALL, Keep
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import MAX_OPERANDS
from tiebreak.sim.scale.counts import Counts
from tiebreak.sim.scale.fitting import Features, Fit, Prediction
from tiebreak.sim.scale.measurements import Measurements, MoveCost
from tiebreak.sim.scale.subjects import Subject
from tiebreak.sim.scale.walks import Place, calldata_of, moves_of, shape_of, wire_bytes

BASE_GAS: Final = 21_000
"""Of every transaction. Calldata: EIP-2028, and EIP-7623's floor."""
ENTRY_BYTES: Final = 110
"""Of the header of a state's file, an entry (name, dtype, shape, place as JSON); about."""
OPENED: Final = 1 + MAX_OPERANDS
"""Values that are opened in a dispute, at most: a result and what it is computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A user's figures.

    keep: which checkpoints stay on disk. window: seconds within which a trainer posts its next head. disputed: share
    of jobs with a dispute. step_seconds: of the user's own plain FP32 step, if known: then every time is that, times
    what was measured here as a ratio to plain PyTorch.
    """

    subject: Subject
    steps: int
    interval: int
    jobs: int = 1
    levels: int = 5
    keep: Keep = ALL
    logged: bool = False
    window: int = 24 * 3600
    disputed: float = 0.01
    step_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.interval <= self.steps:
            raise ConfigurationError(
                f"expected a checkpoint every 1 to {self.steps} steps, got one every {self.interval}"
            )
        if self.jobs < 1 or not 0 <= self.disputed <= 1:
            raise ConfigurationError(
                f"expected jobs from 1 on and a share between 0 and 1, got {self.jobs} and {self.disputed}"
            )
        if self.step_seconds is not None and not 0 < self.step_seconds < float("inf"):
            raise ConfigurationError(f"expected seconds of a step above zero, got {self.step_seconds}")

    @property
    def checkpoints(self) -> int:
        """Of a job."""
        return -(-self.steps // self.interval)

    @property
    def kept(self) -> int:
        """States on disk at the end: the initial one, those that are kept, the newest."""
        if not self.keep.every:
            return 2
        return 1 + -(-self.checkpoints // self.keep.every)

    @property
    def gap(self) -> int:
        """Steps, at most, from a kept state to the beginning of a disputed segment."""
        before = (self.checkpoints - 1) * self.interval
        return before if not self.keep.every else min(before, (self.keep.every - 1) * self.interval)


def replayed_steps(*, gap: int, segment: int, offset: int, opened: int) -> int:
    """Steps that a party executes in a dispute.

    From the kept state to the segment, through it, to the step (`offset` from 1), that step for the ids of its values,
    and once more for each value that is opened.
    """
    return gap + segment + (offset - 1) + 1 + opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a job costs, and all jobs (`all_`). Seconds of one core, bytes, gas, numbers."""

    plain_step: Prediction
    trainer_step: Prediction
    slowdown: Prediction
    checkpoint: Prediction
    training: Prediction
    auditing: Prediction
    replay_move: Prediction
    dispute_steps: Prediction
    dispute_time: Prediction
    memory: Prediction
    state_bytes: Prediction
    run_bytes: Prediction
    records_bytes: Prediction
    metrics_bytes: Prediction
    log_bytes: Prediction
    moves: Prediction
    message_bytes: Prediction
    dispute_gas: Prediction
    move_gas: Prediction
    heads: Prediction
    job_gas: Prediction
    all_gas: Prediction
    all_auditing: Prediction
    all_bytes: Prediction

    def named(self) -> dict[str, Prediction]:
        """By name, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


WHAT: Final[Mapping[str, tuple[str, str]]] = {
    "plain_step": ("a step in plain FP32 PyTorch", "s"),
    "trainer_step": ("the trainer's step, policy exact", "s"),
    "slowdown": ("trainer / plain PyTorch", "x"),
    "checkpoint": ("hashing and writing a checkpoint", "s"),
    "training": ("training, all steps and checkpoints", "s"),
    "auditing": ("auditing all of it", "s"),
    "replay_move": ("dearest move of a dispute: its re-execution", "s"),
    "dispute_steps": ("steps executed again in a dispute, at most", ""),
    "dispute_time": ("a dispute, for each party", "s"),
    "memory": ("peak memory of a trainer", "bytes"),
    "state_bytes": ("a state", "bytes"),
    "run_bytes": ("a run directory", "bytes"),
    "records_bytes": ("of it records", "bytes"),
    "metrics_bytes": ("of it metrics", "bytes"),
    "log_bytes": ("of it rounding logs", "bytes"),
    "moves": ("moves of a dispute", ""),
    "message_bytes": ("its signed messages", "bytes"),
    "dispute_gas": ("its gas", "gas"),
    "move_gas": ("gas of its dearest move", "gas"),
    "heads": ("heads posted", ""),
    "job_gas": ("gas of a job without a dispute", "gas"),
    "all_gas": ("gas of all jobs and disputes", "gas"),
    "all_auditing": ("auditing all jobs", "s"),
    "all_bytes": ("run directories of all jobs", "bytes"),
}
"""What each cost is, and its unit."""


def step_features(counts: Counts) -> Features:
    """What seconds of a step are fitted to."""
    return {
        "instructions": counts.instructions,
        "products": counts.products,
        "terms": counts.terms,
        "elements": counts.elements,
    }


def gas_features(kind: str, nodes: int, siblings: int, calldata: int) -> dict[str, float]:
    """What execution gas of a move is fitted to: its kind, refined by where it stands, and what it shows."""
    name, *where = kind.split(" ")
    found: dict[str, float] = {"nodes": nodes, "siblings": siblings, "calldata": calldata}
    if name != "select":
        return {kind: 1, **found}
    level = where[0]
    return {name: 1, **{f"{name} {level} {end}": 1 for end in where[1:]}, **found}


@dataclass(frozen=True, kw_only=True)
class GasModel:
    """Gas of transactions: of a game's moves by two fits, of the others as measured."""

    moves: Fit
    proofs: Fit
    challenge: float
    first_payout: float
    """More, in the proof that ends a game, if none of the three accounts that it pays had a credit."""
    board: dict[str, float]

    @classmethod
    def of(cls, m: Measurements) -> "GasModel":
        """Fitted to the games. The first of them pays out first, the second is the same game again."""
        moves: list[tuple[dict[str, float], float]] = []
        proofs: list[tuple[dict[str, float], float]] = []
        for number, game in enumerate(m.games):
            moves += [(features_of(cost), execution(cost)) for cost in game.moves[:-1]]
            if not game.moves or not game.moves[-1].kind.startswith("prove"):
                raise EncodingError(f"scale, game {number}: expected a proof in the end, got another move")
            if number:
                proofs.append((features_of(game.moves[-1]), execution(game.moves[-1])))
        last = BOARD_AFTER
        first, again = (game.moves[-1].gas for game in m.games[:2])
        return cls(
            moves=Fit.of(_filled(moves)),
            proofs=Fit.of(_filled(proofs)),
            challenge=sum(game.gas_of_challenge for game in m.games) / len(m.games),
            first_payout=float(first - again),
            board={name: m.table.get(f"board: {name}", last, "gas") for name in BOARD},
        )

    def move(self, kind: str, nodes: int, siblings: int, zeros: int, others: int) -> Prediction:
        """A whole transaction. A proof of a kind that was not measured is taken for the dearest that was."""
        fit = self.proofs if kind.startswith("prove") else self.moves
        features = gas_features(kind, nodes, siblings, zeros + others)
        known = {c.name: c.value for c in fit.coefficients}
        missing = [name for name in features if name not in known]
        if missing:
            dearest = max(
                (name for name in known if name.startswith("prove")), key=lambda name: known[name], default=""
            )
            if not dearest or kind.split(" ", maxsplit=1)[0] != "prove":
                raise ConfigurationError(f"expected a kind of move that was measured, got {kind!r}")
            features = {**{k: v for k, v in features.items() if k in known}, dearest: 1}
        found = fit.predict({**dict.fromkeys(known, 0.0), **features})
        return Prediction(
            value=whole(found.value, zeros, others),
            low=whole(found.low, zeros, others),
            high=whole(found.high, zeros, others),
            extrapolated=found.extrapolated or bool(missing),
        )

    def dispute(self, place: Place) -> tuple[Prediction, Prediction]:
        """All of a game from the challenge to the proof, without a first payout; and its dearest transaction."""
        priced = []
        for planned in moves_of(place):
            data = calldata_of(planned, place)
            nodes, siblings = shape_of(planned.move)
            priced.append(self.move(planned.kind, nodes, siblings, data.count(0), len(data) - data.count(0)))
        total = Prediction.exactly(self.challenge)
        for price in priced:
            total = total.plus(price)
        return total, max(priced, key=lambda price: price.value)

    def job(self, heads: int) -> float:
        """A job without a dispute in which this many heads are posted."""
        g = self.board
        posted = g["first head"] + (g["head"] * (heads - 2) + g["last head"] if heads > 1 else 0)
        return g["create"] + g["accept"] + posted + g["settle"] + g["withdraw"]


BOARD: Final = ("create", "accept", "first head", "head", "last head", "settle", "withdraw")
BOARD_AFTER: Final = "after 100 jobs"


def features_of(cost: MoveCost) -> dict[str, float]:
    """Of a measured move."""
    return gas_features(cost.kind, cost.nodes, cost.siblings, cost.zeros + cost.others)


def execution(cost: MoveCost) -> float:
    """What is left of a transaction's gas without its base and calldata."""
    return cost.gas - BASE_GAS - 4 * cost.zeros - 16 * cost.others


def whole(executed: float, zeros: int, others: int) -> float:
    """A transaction's gas: base, calldata and execution, and never less than EIP-7623's floor."""
    return BASE_GAS + max(executed + 4 * zeros + 16 * others, 10 * zeros + 40 * others)


def _filled(rows: Sequence[tuple[dict[str, float], float]]) -> list[tuple[Features, float]]:
    """The same features in all rows."""
    names = dict.fromkeys(name for features, _ in rows for name in features)
    return [({**dict.fromkeys(names, 0.0), **features}, value) for features, value in rows]


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """All fits."""

    eager: Fit
    trainer: Fit
    ratio: Fit
    """Trainer over plain PyTorch, as the model of each gives it: what is left over of that."""
    hashed: Fit
    hashing: Fit
    writing: Fit
    sums: Fit
    memory: Fit
    logs: Fit
    gas: GasModel
    metrics_bytes: float
    head_bytes: float
    program_bytes: float

    @classmethod
    def of(cls, m: Measurements) -> "CostModel":
        """Fitted to everything in results/scale.json that is not held out."""
        table, steps = m.table, m.fitted
        eager = Fit.of([(step_features(s.counts), s.eager) for s in steps])
        trainer = Fit.of([(step_features(s.counts), s.trainer) for s in steps])
        counts = {s.name: s.counts for s in m.steps}
        states = [
            (
                {"tensors": table.get("states: tensors", case, ""), "bytes": table.get("states: bytes", case, "bytes")},
                case,
            )
            for case in table.cases("states: tensors")
        ]
        return cls(
            eager=eager,
            trainer=trainer,
            ratio=Fit.of([({"predicted": _ratio(eager, trainer, s.counts)}, s.trainer / s.eager) for s in steps]),
            hashed=Fit.of([(step_features(s.counts), s.hashed) for s in steps]),
            hashing=Fit.of([(features, table.get("states: hash", case, "s")) for features, case in states]),
            writing=Fit.of([(features, table.get("states: write", case, "s")) for features, case in states]),
            sums=Fit.of(
                [
                    ({"trees": 1, "terms": table.get("sums: terms", case, "")}, table.get("sums: tree", case, "s"))
                    for case in table.cases("sums: terms")
                ]
            ),
            memory=Fit.of(
                [
                    (
                        {
                            "process": 1,
                            "state": table.get("memory: state", case, "bytes"),
                            "live": table.get("memory: live", case, "bytes"),
                        },
                        table.get("memory: trainer", case, "bytes"),
                    )
                    for case in table.cases("memory: trainer")
                ]
            ),
            logs=Fit.of(
                [
                    (log_features(counts[case]), table.get("logs: sparse", case, "bytes a step"))
                    for case in table.cases("logs: sparse")
                ]
            ),
            gas=GasModel.of(m),
            metrics_bytes=table.get("files: metrics", "a step", "bytes"),
            head_bytes=table.get("files: head", "a checkpoint", "bytes"),
            program_bytes=table.get("files: program", "an instruction", "bytes"),
        )

    def slowdown(self, counts: Counts) -> Prediction:
        """Trainer over plain PyTorch."""
        predicted = _ratio(self.eager, self.trainer, counts)
        found = self.ratio.predict({"predicted": predicted})
        beyond = self.trainer.predict(step_features(counts)).extrapolated
        return Prediction(value=found.value, low=found.low, high=found.high, extrapolated=beyond)

    def costs(self, setting: Setting) -> Costs:
        """Of a user's figures."""
        counts, s = setting.subject.counts, setting
        plain, step, hashed = self._steps(s)
        checkpoint = self._checkpoint(counts)
        training = step.times(s.steps).plus(checkpoint.times(s.checkpoints))
        place = s.subject.place(levels=s.levels, steps=s.steps, interval=s.interval)
        again = replayed_steps(gap=s.gap, segment=s.interval, offset=s.interval, opened=OPENED)
        opening = step.times(s.gap + s.interval)
        ids = step.times(s.interval - 1).plus(hashed)
        tree = self.sums.predict({"trees": 1, "terms": counts.longest})
        planned = moves_of(place)
        game, dearest = self.gas.dispute(place)
        heads = max(1, min(s.checkpoints, ceil(training.value / s.window)))
        life = self.gas.job(heads)
        disk = self._disk(s)
        all_gas = game.times(s.disputed * s.jobs).plus(Prediction.exactly(life * s.jobs))
        return Costs(
            plain_step=plain,
            trainer_step=step,
            slowdown=self.slowdown(counts),
            checkpoint=checkpoint,
            training=training,
            auditing=training,
            replay_move=max(opening, ids, key=lambda prediction: prediction.value),
            dispute_steps=Prediction.exactly(again),
            dispute_time=step.times(again - 1).plus(hashed).plus(tree),
            memory=self.memory.predict(memory_features(counts)),
            state_bytes=Prediction.exactly(counts.state_bytes),
            **disk,
            moves=Prediction.exactly(len(planned)),
            message_bytes=Prediction.exactly(sum(wire_bytes(planned))),
            dispute_gas=game,
            move_gas=dearest,
            heads=Prediction.exactly(heads),
            job_gas=Prediction.exactly(life),
            all_gas=all_gas,
            all_auditing=training.times(s.jobs),
            all_bytes=disk["run_bytes"].times(s.jobs),
        )

    def _steps(self, s: Setting) -> tuple[Prediction, Prediction, Prediction]:
        """Plain, exact, and with every value hashed."""
        features = step_features(s.subject.counts)
        plain, exact = self.eager.predict(features), self.trainer.predict(features)
        hashed = self.hashed.predict(features)
        if s.step_seconds is None:
            return plain, exact, hashed
        own = Prediction.exactly(s.step_seconds)
        step = self.slowdown(s.subject.counts).times(s.step_seconds)
        more = max(0.0, hashed.value - exact.value)  # hashing runs on the CPU wherever the step runs
        return own, step, step.plus(Prediction(value=more, low=0.0, high=hashed.high, extrapolated=hashed.extrapolated))

    def _checkpoint(self, counts: Counts) -> Prediction:
        features = {"tensors": counts.entries, "bytes": counts.state_bytes}
        return self.hashing.predict(features).plus(self.writing.predict(features))

    def _disk(self, s: Setting) -> dict[str, Prediction]:
        counts = s.subject.counts
        records = Prediction.exactly(RECORD_BYTES * s.checkpoints)
        metrics = Prediction.exactly(self.metrics_bytes * s.steps)
        states = (counts.state_bytes + ENTRY_BYTES * counts.entries) * s.kept
        others = self.head_bytes * s.checkpoints + self.program_bytes * counts.instructions + counts.data_bytes
        logs = Prediction.exactly(0)
        if s.logged:
            logs = self.logs.predict(log_features(counts)).times(s.steps)
        total = Prediction.exactly(states + others).plus(records).plus(metrics).plus(logs)
        return {"run_bytes": total, "records_bytes": records, "metrics_bytes": metrics, "log_bytes": logs}


def memory_features(counts: Counts) -> Features:
    """What peak memory is fitted to: the process itself, the state, and the values alive with what they need beside."""
    return {"process": 1, "state": counts.state_bytes + counts.data_bytes, "live": counts.live_bytes}


def log_features(counts: Counts) -> Features:
    """What bytes of a rounding log are fitted to: more of them near a tie, the more terms their sums have."""
    return {"elements": counts.logged_elements, "products": counts.products}


def _ratio(eager: Fit, trainer: Fit, counts: Counts) -> float:
    features = step_features(counts)
    return trainer.predict(features).value / eager.predict(features).value
