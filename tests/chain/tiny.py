"""A tiny training run, computed by the integer reference, and the two sides of a game about it.

The program: n += step; w -= lr * (w * x); loss = sum(w * x), with 300 weights (2 chunks; 75 accumulator leaves).
Everything that a game can be about is here: state, data, constant and step sources, maps, a long reduction, commits.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from protocol import float32
from protocol.accumulator import encode, finish
from protocol.accumulator_tree import AccumulatorTree
from protocol.commitments import StepRecord, data_tree, identify, state_tree, tensor_tree
from protocol.commitments import run_tree as make_run_tree
from protocol.eip712 import Address
from protocol.game import GameState, Level
from protocol.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    Slot,
    SourceConst,
    SourceKind,
    row_major,
)
from protocol.job import Job
from protocol.merkle import Tree, parent
from protocol.moves import (
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Phase,
    Prove,
    Select,
    SelectElement,
    StateWitness,
    TensorWitness,
    Witness,
)
from protocol.program import Program, half_and_half
from protocol.proof import record_place
from protocol.referee import build_openings
from protocol.reference import accumulators, element, execute, new_state, pack, unpack
from protocol.tags import Digest, Tag, tagged_hash

WEIGHTS: Final = 300
N, W, X, STEP, RATE, NEXT, PRODUCT, SCALED, UPDATED, LOSS = range(10)
"""Values of the program."""

F32, I64 = DType.F32, DType.I64


def _source(kind: SourceKind, name: str, slot: int, dtype: DType, *shape: int) -> Instruction:
    return Instruction(opcode=Opcode.SOURCE, function=kind, dtype=dtype, shape=shape, params=Slot(slot=slot, name=name))


def _map(function: MapFunction, dtype: DType, shape: tuple[int, ...], *operands: Access) -> Instruction:
    return Instruction(opcode=Opcode.MAP, function=function, dtype=dtype, shape=shape, operands=operands)


def _whole(value: int, *shape: int) -> Access:
    return Access(value, 0, row_major(shape))


def _commit(slot: int, name: str, value: int, dtype: DType, *shape: int) -> Instruction:
    operands = (_whole(value, *shape),)
    params = Slot(slot=slot, name=name)
    return Instruction(opcode=Opcode.COMMIT, dtype=dtype, shape=shape, operands=operands, params=params)


def make_program() -> Program:
    """The program, validated."""
    vector = (WEIGHTS,)
    rate = SourceConst(bits=int.from_bytes(struct.pack("<f", 0.01), "little"))
    body = (
        _source(SourceKind.STATE, "n", 0, I64),
        _source(SourceKind.STATE, "w", 1, F32, WEIGHTS),
        _source(SourceKind.DATA, "x", 0, F32, WEIGHTS),
        Instruction(opcode=Opcode.SOURCE, function=SourceKind.STEP, dtype=I64),
        Instruction(opcode=Opcode.SOURCE, function=SourceKind.CONST, dtype=F32, params=rate),
        _map(MapFunction.ADD, I64, (), _whole(N), _whole(STEP)),
        _map(MapFunction.MUL, F32, vector, _whole(W, WEIGHTS), _whole(X, WEIGHTS)),
        _map(MapFunction.MUL, F32, vector, _whole(PRODUCT, WEIGHTS), Access(RATE, 0, (0,))),
        _map(MapFunction.SUB, F32, vector, _whole(W, WEIGHTS), _whole(SCALED, WEIGHTS)),
        Instruction(
            opcode=Opcode.REDUCE,
            function=ReduceFunction.SUM,
            dtype=F32,
            reduction=vector,
            operands=(_whole(W, WEIGHTS), _whole(X, WEIGHTS)),
        ),
    )
    commits = (_commit(0, "n", NEXT, I64), _commit(1, "w", UPDATED, F32, WEIGHTS))
    program = Program(body, commits)
    program.validate()
    return program


PROGRAM: Final = make_program()
STATE: Final = {"n": bytes(8), "w": struct.pack(f"<{WEIGHTS}f", *((7 * i % 31 - 15) / 16 for i in range(WEIGHTS)))}
DATA: Final = {"x": struct.pack(f"<{WEIGHTS}f", *((5 * i % 23 - 11) / 8 for i in range(WEIGHTS)))}

Lie = Callable[[int, list[bytes], dict[str, bytes]], None]
"""Changes, in place, the values and then the new state of a step. Called with an empty state, then empty values."""


def flip(data: bytes, at: int) -> bytes:
    """The data with the lowest bit of one byte flipped."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _compute(number: int, values: list[bytes]) -> bytes:
    """One value of the program from the values before it."""
    instruction = PROGRAM.body[number]
    types = PROGRAM.operand_dtypes(instruction)
    operands = [unpack(dtype, values[a.value]) for dtype, a in zip(types, instruction.operands, strict=True)]
    elements = [element(instruction, k, lambda o, at: operands[o][at], types) for k in range(instruction.numel)]
    return pack(instruction.dtype, elements)


def lie_about_value(step: int, value: int, at: int) -> Lie:
    """One byte of one value is wrong, and all that follows in the step is computed from it."""

    def lie(s: int, values: list[bytes], state: dict[str, bytes]) -> None:
        if s == step and values:
            values[value] = flip(values[value], at)
            for number in range(value + 1, len(values)):
                if PROGRAM.body[number].opcode != Opcode.SOURCE:
                    values[number] = _compute(number, values)

    return lie


def lie_about_state(step: int, name: str, at: int) -> Lie:
    """One byte of the state is not what the step computed."""

    def lie(s: int, values: list[bytes], state: dict[str, bytes]) -> None:
        if s == step and state:
            state[name] = flip(state[name], at)

    return lie


def honest(step: int, values: list[bytes], state: dict[str, bytes]) -> None:
    """No lie."""


def make_job(client: Address, trainer: Address, *, nonce: int, descent_levels: int) -> Job:
    """5 steps with checkpoints at 2, 4 and 5."""
    return Job(
        client=client,
        trainer=trainer,
        program_root=PROGRAM.root,
        body_count=len(PROGRAM.body),
        state_count=len(PROGRAM.commits),
        data_count=1,
        initial_state_root=_state_tree(STATE).root,
        data_root=_data_tree().root,
        steps=5,
        checkpoint_interval=2,
        reward=10**18,
        trainer_stake=10**18,
        challenger_stake=10**17,
        challenge_window=1000,
        clock=5000,
        descent_levels=descent_levels,
        nonce=nonce,
    )


def _ids(state: dict[str, bytes]) -> dict[str, Digest]:
    return {name: identify(dtype, shape, state[name]) for name, (dtype, shape) in PROGRAM.state_spec().items()}


def _state_tree(state: dict[str, bytes]) -> Tree:
    return state_tree(_ids(state))


def _data_tree() -> Tree:
    return data_tree({"x": identify(F32, (WEIGHTS,), DATA["x"])})


class Run:
    """One party's run: every step's values and state, and every tree."""

    def __init__(self, steps: int = 5, interval: int = 2, lie: Lie = honest) -> None:
        self.steps, self.interval = steps, interval
        self.states = [dict(STATE)]
        self.values: list[list[bytes]] = [[]]
        for step in range(1, steps + 1):
            values = execute(PROGRAM, self.states[-1], DATA, step)
            lie(step, values, {})
            state = new_state(PROGRAM, values)
            lie(step, [], state)
            self.values.append(values)
            self.states.append(state)

    @cache  # noqa: B019  # a run lives as long as its test
    def record(self, step: int) -> StepRecord:
        """Of a step, or record 0."""
        loss = int.from_bytes(self.values[step][LOSS], "little") if step else 0x7FC00000
        return StepRecord(step=step, state_root=_state_tree(self.states[step]).root, loss_bits=loss)

    @cache  # noqa: B019
    def run_tree(self, count: int) -> Tree:
        """Of a head."""
        ends = [min((j + 1) * self.interval, self.steps) for j in range(count)]
        return make_run_tree([self.record(end).digest for end in ends], self.steps, self.interval)

    @cache  # noqa: B019
    def steps_tree(self, checkpoint: int) -> Tree:
        """Of a checkpoint's segment."""
        first = checkpoint * self.interval + 1
        return Tree([self.record(s).digest for s in range(first, min(first + self.interval, self.steps + 1))])

    @cache  # noqa: B019  # a run lives as long as its test
    def value_tree(self, step: int) -> Tree:
        """Of a step."""
        body = [identify(i.dtype, i.shape, v) for i, v in zip(PROGRAM.body, self.values[step], strict=True)]
        tree = _state_tree(self.states[step])
        return half_and_half(body, [tree.node(0, k) for k in range(tree.count)], PROGRAM.half_depth)

    @cache  # noqa: B019  # a run lives as long as its test
    def accumulators(self, step: int, value: int, element: int) -> list[bytes]:
        """After each leaf. If this run claims another sum than that of its terms, the lie begins at leaf 40."""
        instruction = PROGRAM.body[value]
        operands = [unpack(F32, self.values[step][access.value]) for access in instruction.operands]
        types = PROGRAM.operand_dtypes(instruction)
        found = accumulators(instruction, element, lambda o, where: operands[o][where], types)
        claimed = int.from_bytes(self.values[step][value][4 * element : 4 * element + 4], "little")
        if finish(found[-1]) != claimed:
            missing = (float32.scaled(claimed) << 149) - found[-1].value
            found[40:] = [replace(a, value=a.value + missing) for a in found[40:]]
        return [encode(a) for a in found]


@dataclass
class View:
    """A tree of one's own, with the nodes that the defender revealed in its stead where it did."""

    own: Tree
    revealed: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def node(self, height: int, position: int) -> bytes:
        """The defender's node, as far as it is known."""
        if (height, position) in self.revealed:
            return self.revealed[height, position]
        if any(h < height and p >> (height - h) == position for h, p in self.revealed):
            return parent(self.node(height - 1, 2 * position), self.node(height - 1, 2 * position + 1))
        return self.own.node(height, position)

    def proof(self, position: int, depth: int | None = None) -> tuple[bytes, ...]:
        """Siblings of a leaf, from the leaf upwards."""
        levels = self.own.depth if depth is None else depth
        return tuple(self.node(height, (position >> height) ^ 1) for height in range(levels))


class Party:
    """Plays either side from its own run, and remembers what the defender revealed."""

    def __init__(self, run: Run, head_count: int) -> None:
        self.run = run
        self.head_count = head_count
        self._views: dict[Level, View] = {}

    def own_tree(self, state: GameState) -> Tree:
        """This party's tree in the place of the current one."""
        match state.level:
            case Level.RUN:
                return self.run.run_tree(self.head_count)
            case Level.STEPS:
                return self.run.steps_tree(state.checkpoint)
            case Level.VALUES:
                return self.run.value_tree(state.step)
            case Level.CHUNKS:
                return tensor_tree(self.run.values[state.step][state.leaf])
            case Level.TERMS:
                return self._terms(state)

    def _terms(self, state: GameState) -> Tree:
        found = self.run.accumulators(state.step, state.leaf, state.element)
        return Tree([tagged_hash(Tag.ACCUMULATOR, encoded) for encoded in found])

    def view(self, state: GameState, level: Level) -> View:
        """What this party knows of the defender's tree of a level."""
        if level not in self._views:
            self._views[level] = View(self.own_tree(replace(state, level=level)))
        return self._views[level]

    # ------------------------------------------------------------------ the defender

    def defend(self, state: GameState) -> Move:
        """The move of a defender that stands by its run."""
        program, step, leaf = PROGRAM, state.step, state.leaf
        match state.phase:
            case Phase.DESCEND:
                return Descend(nodes=tuple(self.own_tree(state).below(state.height, state.position, state.levels)))
            case Phase.OPEN_STEPS:
                tree = self.run.steps_tree(state.checkpoint)
                return OpenSteps(steps_root=tree.root, siblings=tuple(tree.proof(tree.count - 1)))
            case Phase.OPEN_VALUES:
                record, tree = self.run.record(step), self.run.value_tree(step)
                depth = program.half_depth
                return OpenValues(
                    state_root=record.state_root,
                    loss_bits=record.loss_bits,
                    log_root=record.log_root,
                    body_root=tree.node(depth, 0),
                    siblings=tuple(tree.proof(LOSS)[:depth]),
                )
            case Phase.OPEN_TENSOR:
                return OpenTensor(
                    instruction=program.encoded_at(leaf),
                    siblings=tuple(program.tree.proof(leaf)),
                    chunk_root=tensor_tree(self.run.values[step][leaf]).root,
                )
            case Phase.OPEN_CHUNK:
                return OpenChunk(chunk=self._chunk(state))
            case Phase.OPEN_TERMS:
                found, tree = self.run.accumulators(step, leaf, state.element), self._terms(state)
                return OpenTerms(
                    accumulator_root=tree.root,
                    accumulator=found[-1],
                    siblings=tuple(tree.proof(tree.count - 1)),
                    instruction=program.encoded_at(leaf),
                )
        raise AssertionError(state.phase)

    def _chunk(self, state: GameState) -> bytes:
        return self.run.values[state.step][state.leaf][512 * state.chunk : 512 * (state.chunk + 1)]

    # ------------------------------------------------------------------ the challenger

    def challenge(self, state: GameState, last: Move | None, otherwise: int = 0) -> Move:
        """The move of a challenger that believes its run; `last` is the defender's move before.

        Where nothing differs (the challenger is wrong), it picks by `otherwise`.
        """
        match state.phase:
            case Phase.SELECT:
                assert isinstance(last, Descend)
                return self._select(state, last.nodes, otherwise)
            case Phase.SELECT_ELEMENT:
                assert isinstance(last, OpenChunk)
                instruction = PROGRAM.instruction_at(state.leaf)
                size, mine = instruction.dtype.size, self._chunk(state)
                count = len(last.chunk) // size
                wrong = [k for k in range(count) if last.chunk[k * size :][:size] != mine[k * size :][:size]]
                index = wrong[0] if wrong else otherwise % count
                return SelectElement(index=index, chunk=last.chunk, instruction=PROGRAM.encoded_at(state.leaf))
            case Phase.PROVE:
                return self._prove(state)
        raise AssertionError(state.phase)

    def _select(self, state: GameState, nodes: tuple[bytes, ...], otherwise: int) -> Select:
        own = self.own_tree(state).below(state.height, state.position, state.levels)
        wrong = [k for k, (theirs, mine) in enumerate(zip(nodes, own, strict=True)) if theirs != mine]
        first = state.position << state.levels
        view = self.view(state, state.level)
        view.revealed.update({(state.height - state.levels, first + k): node for k, node in enumerate(nodes)})
        return Select(nodes=nodes, index=wrong[0] if wrong else otherwise % len(nodes))

    def _prove(self, state: GameState) -> Prove:
        program, depth = PROGRAM, PROGRAM.half_depth
        instruction, encoded = program.instruction_at(state.leaf), program.encoded_at(state.leaf)
        values = self.run.values[state.step]
        if state.leaf >> depth:
            operand = instruction.operands[0].value
            identity = identify(instruction.dtype, instruction.shape, values[operand])
            witness = TensorWitness(tensor_id=identity, siblings=self.view(state, Level.VALUES).proof(operand, depth))
            return Prove(instruction=encoded, siblings=tuple(program.tree.proof(state.leaf)), witness=witness)
        if state.level is Level.VALUES:
            return Prove(instruction=encoded, witness=self._source_witness(state, instruction))
        leaf = state.position if state.level is Level.TERMS else None
        tensors, chunks = build_openings(
            program,
            instruction,
            state.element,
            leaf,
            body_tree=_AsTree(self.view(state, Level.VALUES)),
            tensor_bytes=lambda value: values[value],
        )
        if leaf is None or leaf == 0:
            return Prove(instruction=encoded, tensors=tensors, chunks=chunks)
        previous = self.run.accumulators(state.step, state.leaf, state.element)[leaf - 1]
        siblings = self.view(state, Level.TERMS).proof(leaf - 1)
        return Prove(instruction=encoded, previous=previous, siblings=siblings, tensors=tensors, chunks=chunks)

    def _source_witness(self, state: GameState, instruction: Instruction) -> Witness:
        if not isinstance(instruction.params, Slot):
            return None
        slot = instruction.params
        if instruction.function == SourceKind.DATA:
            identity = identify(instruction.dtype, instruction.shape, DATA[slot.name])
            return TensorWitness(tensor_id=identity, siblings=tuple(_data_tree().proof(slot.slot)))
        before = state.step - 1
        record = self.run.record(before)
        place = record_place(state.job, state.step, state.head.run_root, state.steps_root)
        if before == 0:
            siblings: tuple[bytes, ...] = ()
        elif before % state.job.checkpoint_interval == 0:
            siblings = self.view(state, Level.RUN).proof(place.position)
        else:
            siblings = self.view(state, Level.STEPS).proof(place.position)
        return StateWitness(
            step=before,
            state_root=record.state_root,
            loss_bits=record.loss_bits,
            log_root=record.log_root,
            record_siblings=siblings,
            tensor_id=_ids(self.run.states[before])[slot.name],
            siblings=tuple(_state_tree(self.run.states[before]).proof(slot.slot)),
        )


class _AsTree(Tree):
    """A view in the place of a tree: only its proofs are asked for."""

    def __init__(self, view: View) -> None:
        self._view = view

    def proof(self, position: int) -> list[Digest]:
        """As the defender's tree has it."""
        return [Digest(digest) for digest in self._view.proof(position)]


class RunOracle:
    """A run as `protocol.player.Oracle`, for the project's own players."""

    def __init__(self, run: Run, job: Job) -> None:
        self.job = job
        self.program = PROGRAM
        self.run_tree = run.run_tree
        self.steps_tree = run.steps_tree
        self.record = run.record
        self.value_tree = run.value_tree
        self._run = run

    def tensor(self, step: int, value: int) -> bytes:
        """The data of a body value."""
        return self._run.values[step][value]

    def accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        """The accumulator tree of an element."""
        return AccumulatorTree.over(self._run.accumulators(step, value, element))

    def state_leaves(self, step: int) -> Tree:
        """The state tree after a step."""
        return _state_tree(self._run.states[step])

    def state_id(self, step: int, name: str) -> Digest:
        """The id of a state entry after a step."""
        return _ids(self._run.states[step])[name]

    def data_id(self, name: str) -> Digest:
        """The id of a data entry."""
        return identify(F32, (WEIGHTS,), DATA[name])
