"""Games that are talked through: signed states, receipts, forks, entering, and clocks that wait for the talk."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.parts import slow_except
from tests.protocol.logged import logged_job, random_logs
from tests.protocol.runs import (
    CHALLENGER,
    CLIENT,
    CLOCK,
    DOMAIN,
    GAME,
    REPLAY,
    SECRET,
    TRAINER,
    Liar,
    Run,
    make_job,
    max_moves,
)
from tests.protocol.walks import ARGMAX, COMMIT, JOB, WALKS, Erratic, Garbage, RandomChallenger, check_invariants, other
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import EncodingError, IllegalMove, SignatureError, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Message, Transcript, open_wire, sign
from tiebreak.protocol.game.moves import Concede, Descend, Move, Phase, Side
from tiebreak.protocol.game.rules import GameState, Reason
from tiebreak.protocol.game.sides import Challenger, Defender, Party, choose
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot, Standing
from tiebreak.protocol.packing import pack

KEYS = {Side.DEFENDER: TRAINER, Side.CHALLENGER: CHALLENGER}
D, C = Side.DEFENDER, Side.CHALLENGER


def talked(moves: int, name: str = "terms") -> Transcript:
    """The talk of a walk's first moves. Each message carries the signature of the state after it."""
    steps = WALKS[name]
    log = Transcript(steps[0][0], domain=DOMAIN, challenger=CHALLENGER.address)
    for before, move, after in steps[:moves]:
        wire = log.sign(move, KEYS[before.mover])
        assert log.append(wire) == move
        assert log.wires[-1] == wire
        state, signed = log.latest(before.mover)  # type: ignore[misc]
        assert Snapshot.of(state) == Snapshot.of(after)
        assert signed.standing == Standing.of(after)
        assert SignedStanding.decode(signed.encode()) == signed
    return log


# ---------------------------------------------------------------- what is signed


@pytest.mark.parametrize("name", WALKS)
def test_transcript_closes_after_the_proof(name: str) -> None:
    log = talked(-1, name)
    log.append(log.sign(WALKS[name][-1][1], CHALLENGER))
    assert log.is_closed
    assert log.messages == len(WALKS[name])


def test_sealed_state_gets_the_defenders_signature_by_receipt() -> None:
    """Both the seal and the next move before a proof are the challenger's: only a receipt has the defender's name."""
    for name, phase in (("terms", Phase.SELECT), ("element", Phase.SELECT_ELEMENT), ("commit", Phase.SELECT)):
        log = talked(-1, name)
        assert (log.state.phase, WALKS[name][-2][1].KIND) == (Phase.PROVE, phase)
        before = log.latest(D)
        assert before[0].moves == log.state.moves - 1
        log.acknowledge(log.receipt(TRAINER))
        after = log.latest(D)
        assert after[0] == log.state
        assert after[1].signature == TRAINER.sign(Standing.of(log.state).digest(DOMAIN))
        assert log.fork is None


def test_receipt_must_match_this_game_and_its_state() -> None:
    log = talked(5)
    good = Standing.of(log.state)
    wrong = {
        "one for this game": replace(good, game_id=bytes(32)),
        "after at most 5 moves": replace(good, sequence=6),
        "the state after 5 moves, got another": replace(good, snapshot=bytes(32)),
    }
    for message, standing in wrong.items():
        receipt = SignedStanding.under(standing, CHALLENGER.sign(standing.digest(DOMAIN)))
        with pytest.raises(VerificationError, match=message):
            talked(5).acknowledge(receipt.encode())
    with pytest.raises(VerificationError, match="by one of the parties"):
        log.acknowledge(log.receipt(CLIENT))
    with pytest.raises(EncodingError):
        log.acknowledge(log.receipt(TRAINER) + b"\0")
    with pytest.raises(EncodingError):
        log.acknowledge(pack([bytes(32), 0, bytes(32)]))
    assert log.fork is None


# ---------------------------------------------------------------- what a transcript refuses


def refused(log: Transcript, wire: bytes, error: type[Exception], match: str) -> None:
    before = (log.wires, log.state, log.latest(D), log.latest(C))
    with pytest.raises(error, match=match):
        log.append(wire)
    assert before == (log.wires, log.state, log.latest(D), log.latest(C))


def test_transcript_refuses_misplaced_or_malformed_messages() -> None:
    log = talked(0)
    (start, first, after), (_, second, _) = WALKS["terms"][:2]
    good = log.next_message(first)

    def changed(key: PrivateKey = TRAINER, then: GameState | None = after, **fields: object) -> bytes:
        return sign(replace(good, **fields), DOMAIN, key, then)  # type: ignore[arg-type]

    refused(log, changed(CHALLENGER), SignatureError, "expected a signature by")
    refused(log, changed(then=None), SignatureError, "expected a signature by")
    refused(log, changed(then=start), SignatureError, "expected a signature by")
    refused(log, changed(move=second), VerificationError, r"a move of the defender, got .*\(select\)")
    refused(log, changed(sequence=1), VerificationError, "sequence: expected 0, got 1")
    refused(log, changed(job_id=GAME), VerificationError, "job: expected")
    refused(log, changed(game_id=JOB.id), VerificationError, "game: expected")
    refused(log, changed(previous=JOB.id), VerificationError, "message answered: expected")
    refused(log, changed(move=Descend(nodes=first.nodes[1:])), IllegalMove, "expected 4 nodes, got 3")
    refused(log, changed()[:-1], EncodingError, "expected one msgpack value")
    assert log.append(changed()) == first
    refused(log, changed(), VerificationError, "sequence: expected 1, got 0")  # replayed
    refused(log, sign(log.next_message(first), DOMAIN, TRAINER, None), VerificationError, "a move of the challenger")
    refused(log, sign(log.next_message(second), DOMAIN, CLIENT, None), SignatureError, "expected a signature by")
    encoded, signature = open_wire(log.sign(second, CHALLENGER))
    for wire in ([encoded, signature[:64]], [encoded, signature, 0], [encoded], [[], signature]):
        refused(log, pack(wire), EncodingError, "expected")
    log.append(pack([encoded, signature]))
    assert (log.messages, log.fork) == (2, None)


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("moves", [0, 1, 5])
def test_invariant_3_each_side_concedes_only_for_itself(side: Side, moves: int) -> None:
    log = talked(moves)
    wire = log.sign(Concede(), KEYS[side])
    refused(log, log.sign(Concede(), CLIENT), SignatureError, "expected a signature by")
    log.append(wire)
    assert (log.conceded, log.is_closed) == (side, True)
    refused(log, wire, VerificationError, "sequence: expected no more")


def test_transcript_refuses_moves_that_contradict_commitments() -> None:
    log = talked(0)
    first = WALKS["terms"][0][1]
    broken = replace(first, nodes=(other(first.nodes[0]), *first.nodes[1:]))
    with pytest.raises(IllegalMove, match="do not fold to the node above"):
        log.sign(broken, TRAINER)
    refused(log, sign(log.next_message(broken), DOMAIN, TRAINER, None), IllegalMove, "do not fold to the node above")
    assert (log.messages, log.latest(D), log.is_closed) == (0, None, False)


# ---------------------------------------------------------------- forks


def test_second_signed_message_at_an_old_sequence_is_a_fork() -> None:
    log = talked(6)
    before, made, _ = WALKS["terms"][1]
    nodes = WALKS["terms"][0][1].nodes  # type: ignore[union-attr]
    another = choose(nodes, made.index ^ 1)
    previous = Message.decode(open_wire(log.wires[0])[0]).hash
    message = Message(job_id=JOB.id, game_id=GAME, sequence=1, previous=previous, move=another)
    after = rules.apply(before, another, before.last)
    with pytest.raises(VerificationError, match="sequence: expected 6, got 1"):
        log.append(sign(message, DOMAIN, CLIENT, after))
    assert log.fork is None, "a stranger's signature says nothing"
    with pytest.raises(VerificationError, match="sequence: expected 6, got 1"):
        log.append(sign(message, DOMAIN, CHALLENGER, after))
    log.fork.verify(DOMAIN, CHALLENGER.address)
    assert (log.fork.sequence, log.fork.second) == (2, Snapshot.of(after).id)
    with pytest.raises(SignatureError):
        log.fork.verify(DOMAIN, TRAINER.address)


def test_receipt_that_contradicts_an_earlier_signature_is_a_fork() -> None:
    log = talked(5)
    assert log.state.mover is C, "the defender has signed this state"
    standing = replace(Standing.of(log.state), snapshot=bytes(32))
    receipt = SignedStanding.under(standing, TRAINER.sign(standing.digest(DOMAIN))).encode()
    with pytest.raises(VerificationError, match="the state after 5 moves, got another"):
        log.acknowledge(receipt)
    log.fork.verify(DOMAIN, TRAINER.address)
    found = log.latest(D)
    assert found[1].standing == Standing.of(log.state), "what can enter is what the rules led to"


def test_wrong_receipt_never_replaces_the_latest_signed_state() -> None:
    log = talked(6)
    assert log.state.mover is D
    standing = replace(Standing.of(log.state), snapshot=bytes(32))
    with pytest.raises(VerificationError, match="got another"):
        log.acknowledge(SignedStanding.under(standing, TRAINER.sign(standing.digest(DOMAIN))).encode())
    found = log.latest(D)
    assert found[0].moves == 5
    assert found[1].standing == Standing.of(found[0])
    log.acknowledge(log.receipt(TRAINER))
    assert log.fork is not None, "the second of two states is a fork, whichever is right"
    log.fork.verify(DOMAIN, TRAINER.address)


# ---------------------------------------------------------------- the talking phase

TALK = 50


def started(run: Run) -> GameState:
    return rules.start(run.job, run.head().head, GAME, 1000)


def talking_job(**options: int):  # type: ignore[no-untyped-def]
    return replace(make_job(**options), talk_time=TALK)


def test_invariant_5_moves_during_off_chain_play_cost_no_time() -> None:
    run = Run(talking_job())
    start = started(run)
    assert (start.last, start.moved, start.deadline) == (1000 + TALK, 1000, 1000 + TALK + CLOCK)
    move = Defender(run).move(start, None)
    for now in (1000, 1001, 1000 + TALK - 1, 1000 + TALK):
        after = rules.apply(start, move, now)
        check_invariants(start, move, after)
        assert (after.defender_rest, after.last, after.moved) == (CLOCK, 1000 + TALK, now)
    after = rules.apply(start, move, 1000 + TALK + 1)
    assert (after.defender_rest, after.last, after.moved) == (CLOCK - 1, 1000 + TALK + 1, 1000 + TALK + 1)
    with pytest.raises(IllegalMove, match="not before 1000, got 999"):
        rules.apply(start, move, 999)
    later = rules.apply(start, move, 1010)
    with pytest.raises(IllegalMove, match="not before 1010, got 1009"):
        rules.apply(later, choose(move.nodes, 0), 1009)  # type: ignore[union-attr]


def test_invariant_6_no_timeout_is_legal_during_off_chain_play() -> None:
    start = started(Run(talking_job()))
    for now in (1000, 1000 + TALK, 1000 + TALK + CLOCK):
        with pytest.raises(IllegalMove, match=f"expected an instant after {1000 + TALK + CLOCK}"):
            rules.timeout(start, now)
    assert rules.timeout(start, 1000 + TALK + CLOCK + 1).is_over


def test_invariant_11_a_proof_must_also_wait_during_off_chain_play() -> None:
    state, proof, _ = WALKS["element"][-1]
    state = replace(state, moved=1000, last=1000 + TALK)
    for now in (1000, 1000 + CLOCK - 1):
        with pytest.raises(IllegalMove, match=f"expected a proof not before {1000 + CLOCK}"):
            rules.apply(state, proof, now)
    for now in (1000 + CLOCK, 1000 + TALK + CLOCK):
        assert rules.apply(state, proof, now).challenger_rest == state.challenger_rest
    assert state.deadline == 1000 + TALK + CLOCK + state.challenger_rest


@pytest.mark.parametrize("side", Side)
def test_invariant_3_either_side_concedes_at_any_time(side: Side, cases: Callable[[], None]) -> None:
    for state, _, _ in WALKS["terms"]:
        for now in (state.last, state.deadline, state.deadline + 1):
            after = rules.concede(state, side, now)
            assert (after.verdict.winner, after.verdict.reason) == (side.other, Reason.CONCEDED)
            assert after.verdict.detail == f"the {side.name.lower()} conceded in phase {state.phase.name}"
            assert (after.defender_rest, after.challenger_rest) == (state.defender_rest, state.challenger_rest)
            with pytest.raises(IllegalMove, match="over"):
                rules.concede(after, side, now)
            if state.mover is side:
                moved = rules.apply(state, Concede(), now)
                check_invariants(state, Concede(), moved)
                assert moved == replace(after, moves=state.moves + 1)
            cases()
        if state.last:
            with pytest.raises(IllegalMove, match="not before"):
                rules.apply(state, Concede(), state.last - 1)


def test_invariant_13_only_later_states_enter_during_off_chain_play(cases: Callable[[], None]) -> None:
    steps = WALKS["terms"]
    start = replace(steps[0][0], moved=1000, last=1000 + TALK, defender_rest=7, challenger_rest=9)
    for number, (later, move, _) in enumerate(steps):
        for now in (1000, 1000 + TALK - 1) if number else ():
            entered = rules.enter(start, later, now)
            assert Snapshot.of(entered) == Snapshot.of(later)
            clocks = (entered.defender_rest, entered.challenger_rest, entered.last, entered.moved, entered.moves)
            assert clocks == (7, 9, 1000 + TALK, 1000, number)
            assert rules.apply(entered, move, entered.earliest + 1).moves == number + 1
            cases()
        for now in (999, 1000 + TALK):
            with pytest.raises(IllegalMove, match=f"expected an instant from 1000 to {1000 + TALK - 1}"):
                rules.enter(start, later, now)
        for stale in (state for state, _, _ in steps[: number + 1]):
            with pytest.raises(IllegalMove, match=f"expected a state after more than {number} moves, got one after"):
                rules.enter(replace(start, moves=number), stale, 1000)
    with pytest.raises(IllegalMove, match="over"):
        rules.enter(steps[-1][2], steps[-1][0], 1000)
    with pytest.raises(IllegalMove, match="while the sides talk"):  # without a talking phase
        rules.enter(replace(start, last=1000), steps[3][0], 1000)


def test_invariant_14_a_state_signed_by_the_defender_is_always_provable() -> None:
    """`enterAndProve`: the defender has signed the seal, so only its partner could have copied the answer."""
    state, proof, _ = WALKS["terms"][-1]
    start = replace(WALKS["terms"][0][0], moved=1000, last=1000 + TALK)
    end = rules.apply(rules.enter(start, state, 1001), proof, 1000 + CLOCK)
    assert (end.verdict.winner, end.verdict.reason) == (C, Reason.RECOMPUTED)
    for before, _, _ in WALKS["terms"]:
        assert rules.prove_signed(before, state, proof).verdict == end.verdict
    with pytest.raises(IllegalMove, match="over"):
        rules.prove_signed(end, state, proof)
    with pytest.raises(IllegalMove, match="expected the seal"):
        rules.prove_signed(start, state, replace(proof, salt=bytes(32)))  # type: ignore[type-var]
    for early, move, _ in WALKS["terms"][:-1]:
        with pytest.raises(IllegalMove, match="expected a proof from phase PROVE"):
            rules.prove_signed(start, early, proof)
        with pytest.raises(IllegalMove, match="expected a proof from phase PROVE"):
            rules.prove_signed(start, state, move)
    # The state alone, entered, makes its proof wait.
    with pytest.raises(IllegalMove, match=f"expected a proof not before {1000 + CLOCK}"):
        rules.apply(rules.enter(start, state, 1000), proof, 1001)


# ---------------------------------------------------------------- 9, 10 and 13: any interleaving

Line = tuple[tuple[Move, GameState], ...]
"""The moves that led to a state, each with the state after it."""


class Table:
    """A game on the chain and the talk beside it. The hostile side does anything; the honest one loses neither."""

    def __init__(self, run: Run, honest: Side, oracle: Run, hostile: Party, random: Random) -> None:
        self.now, self.random = 1000, random
        self.honest, self._oracle, self._hostile = honest, oracle, hostile
        count = random.randint(1, run.job.checkpoints) if honest is D else None
        start = rules.start(run.job, run.head(count).head, GAME, self.now)
        self.allowed = Counter[Side]()
        self.chain, self.talk = start, start
        self._chain_line: Line = ()
        self._talk_line: Line = ()
        self.signed: dict[Side, dict[int, tuple[GameState, Line]]] = {side: {} for side in Side}
        self.entered = 0

    def _move(self, state: GameState, line: Line) -> Move:
        answered = line[-1][0] if line else None
        if state.mover is not self.honest:
            return self._hostile.move(state, answered)
        if self.honest is Side.DEFENDER:
            return Defender(self._oracle).move(state, answered)
        challenger = Challenger(self._oracle, SECRET)  # it must forget what was shown on another line
        for move, after in line:
            challenger.learn(after, move)
        return challenger.move(state, answered)

    def _sign(self, side: Side, state: GameState, line: Line) -> None:
        assert state.moves not in self.signed[side] or self.signed[side][state.moves][0] is state  # no fork
        self.signed[side][state.moves] = (state, line)

    def speak(self) -> None:
        """One message, and a receipt for it."""
        if self.talk.phase is Phase.PROVE:
            return  # its place is on the chain
        mover, move = self.talk.mover, self._move(self.talk, self._talk_line)
        after = rules.apply(self.talk, move, self.talk.last)
        if after.is_over:
            return  # there is nothing to sign
        self.talk, self._talk_line = after, (*self._talk_line, (move, after))
        self._sign(mover, after, self._talk_line)
        if after.phase is Phase.PROVE and mover is Side.CHALLENGER:
            self._sign(Side.DEFENDER, after, self._talk_line)

    def enter(self, signer: Side, *, latest: bool) -> None:
        signed = self.signed[signer]
        found = [signed[number] for number in signed if number > self.chain.moves]
        if found and self.chain.talks(self.now):
            later, self._chain_line = found[-1] if latest else self.random.choice(found)
            before, self.chain = self.chain, rules.enter(self.chain, later, self.now)
            assert self.chain.moves > before.moves
            self.entered += 1

    def play(self) -> None:
        """One move on the chain: a hostile one as late as it likes, or never; an honest one in time."""
        state = self.chain
        is_hostile, choice = state.mover is not self.honest, self.random.random()
        self.now = max(self.now, state.earliest)
        if is_hostile and choice < 0.05:
            with pytest.raises(IllegalMove):
                rules.timeout(state, state.deadline)
            self.now = state.deadline + 1
            self.chain = rules.timeout(state, self.now)
            return
        if is_hostile and choice < 0.25:
            self.now = max(
                self.now, self.random.choice([state.deadline, self.random.randint(state.last, state.deadline)])
            )
        elif not is_hostile and not state.talks(self.now):  # two seconds of its clock a move: there is enough for all
            self.now = max(self.now, self.random.randint(state.earliest, state.last + state.allowance + 2))
        self.allowed[state.mover] += state.allowance > 0 and state.phase is not Phase.PROVE
        assert self.entered or self.allowed[state.mover] <= 3  # invariant 12
        move = Concede() if is_hostile and choice > 0.98 else self._move(state, self._chain_line)
        self.chain = rules.apply(state, move, self.now)
        check_invariants(state, move, self.chain)
        self._chain_line = (*self._chain_line, (move, self.chain))

    def turn(self) -> None:
        hostile, talks = self.honest.other, self.chain.talks(self.now)
        choice = self.random.random()
        if talks and choice < 0.55:
            self.speak()
        elif talks and choice < 0.65:
            self.enter(self.honest, latest=self.random.random() < 0.2)  # the hostile side enters, mostly what is stale
        elif talks and choice < 0.75:
            self.enter(hostile, latest=True)
        elif talks and choice < 0.85:
            self.now += self.random.randint(0, TALK // 6)
        else:
            self.play()


def play_out(table: Table, winner: Side) -> None:
    turns, job = 0, table.chain.job
    while not table.chain.is_over:
        table.turn()
        turns += 1
        assert turns < 2000
    assert table.chain.verdict.winner is winner, table.chain.verdict
    assert 1000 <= table.now <= 1000 + job.talk_time + 3 * CLOCK + 6 * REPLAY + 1  # invariant 12
    assert table.chain.moves <= max_moves(job)


def drawn_run(random: Random) -> Run:
    logs = random.choice([None, random_logs(1), random_logs(2)])
    make = make_job if logs is None else logged_job
    job = make(levels=random.randint(1, 5), interval=random.randint(1, 5))
    return Run(replace(job, talk_time=random.choice([0, TALK, TALK, TALK])), logs=logs)


@pytest.mark.parametrize("examples", slow_except([30, 100], 30))
def test_invariants_9_and_13_honest_defender_wins_from_entered_states(examples: int) -> None:
    entered = 0

    @settings(max_examples=examples)
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        nonlocal entered
        random = Random(seed)
        run = drawn_run(random)
        table = Table(run, D, run, RandomChallenger(run, random), random)
        play_out(table, D)
        entered += table.entered > 0

    check()
    assert entered > 3


@pytest.mark.parametrize("examples", slow_except([16, 100], 16))
def test_invariants_10_and_13_honest_challenger_wins_from_entered_states(examples: int) -> None:
    entered = 0

    @settings(max_examples=examples)
    @given(st.integers(0, 1 << 32), st.sampled_from([ARGMAX, 24, COMMIT, 3, 0]))
    def check(seed: int, leaf: int) -> None:
        nonlocal entered
        random = Random(seed)
        run = drawn_run(random)
        bent = Liar(run.job, 4, leaf, bend_from=random.randrange(2), logs=run.logs)
        liar = Garbage(run, random) if random.random() < 0.5 else bent
        count = run.job.checkpoints
        assume(liar.run_tree(count).root != run.run_tree(count).root)  # a lie may be undone before a checkpoint
        table = Table(liar, C, run, Erratic(liar, random), random)
        play_out(table, C)
        entered += table.entered > 0

    check()
    assert entered > 3


def test_invariant_12_time_bound_includes_off_chain_play() -> None:
    """Nobody says anything, and every move comes as late as it may."""
    run = Run(talking_job())
    state = started(run)
    assert state.deadline + 1 <= 1000 + TALK + 2 * CLOCK + 6 * REPLAY + 1
    moved = rules.apply(state, Defender(run).move(state, None), state.deadline)
    assert moved.deadline == 1000 + TALK + 2 * CLOCK
    assert rules.timeout(moved, moved.deadline + 1).is_over
