"""Policy `logged`: each way to misuse a rounding log loses before both referees, no lawful use of it does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.oracles import nearest, value
from tests.sim.log_cheats import (
    ForgedWords,
    Maker,
    bad_entry,
    course_of,
    drift,
    first_lie,
    is_lawful,
    silent_rounding,
    tie_breaking,
    with_words,
)
from tests.sim.logged_yard import LoggedYard, audit_logged
from tests.sim.yard import INTERVAL, STEPS, Yard, assert_same_end
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFile, LogFiles, log_path
from tiebreak.engine.logged.following import FindingKind
from tiebreak.engine.logged.journal import Journal
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.chain import JobStatus
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.log_tree import NO_WORD, LogTree
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError
from tiebreak.protocol.game.moves import OpenChunk, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.rounding import Direction, Rounding, SumKind, sum_kind
from tiebreak.protocol.program.step_log import StepLog
from tiebreak.sim.adversaries.forgery import ForgedLogTree, Words
from tiebreak.sim.adversaries.logs import Course, ExactSum, LogCheat, greater, with_entry, wrong_way
from tiebreak.sim.games.disputes import ChainMatch, Published, fork, play_out, publish

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logged(yard: Yard) -> LoggedYard:
    return LoggedYard(yard)


Wanted = Callable[[ExactSum], bool]


def is_far(exact: ExactSum) -> bool:
    return exact.between and not exact.near


def is_near(exact: ExactSum) -> bool:
    return exact.between and exact.near


def pick(logged: LoggedYard, step: int, wanted: Wanted) -> ExactSum:
    """The last of the sums of an honest step that are as wanted: of a gradient, where there is one."""
    return [exact for exact in logged.sums(step) if wanted(exact)][-1]


def of_kind(logged: LoggedYard, kind: SumKind, *, long: bool) -> Wanted:
    def wanted(exact: ExactSum) -> bool:
        instruction = logged.program.body[exact.leaf]
        return sum_kind(instruction) == kind and (instruction.terms > 4) == long

    return wanted


def cheat_of(logged: LoggedYard, make: Maker, course: Course) -> LogCheat:
    return make(logged.arena.run, logged.trainer, course)


def assert_caught(match: ChainMatch, cheat: LogCheat) -> None:
    """The trainer lost, because its number is not what the sum rounds to, at its first number that the law forbids."""
    state, verdict, lie = match.final, match.final.verdict, first_lie(cheat)
    assert match.loser is Side.DEFENDER
    assert verdict is not None
    assert verdict.reason is Reason.RECOMPUTED
    assert (state.step, state.leaf, state.element) == (lie.step, lie.exact.leaf, lie.exact.element)
    assert int.from_bytes(state.claimed, "little") == lie.exact.bits(lie.way)
    assert state.direction == (lie.way if lie.logged else Direction.NONE), "what the referee was shown of the log"


# ---------------------------------------------------------------- what the tools say of sums


@given(st.integers(-(2**60), 2**60), st.integers(-190, 60), st.integers(16, 32), st.integers(2, 10))
def test_an_exact_sum_knows_its_neighbours(n: int, e: int, precision: int, tolerance: int) -> None:
    exact = ExactSum(leaf=0, element=0, n=n, e=e, rounding=Rounding(precision=precision, tolerance=tolerance))
    x = n * Fraction(2) ** e
    rounded = nearest(x, precision)
    if rounded & 0x7FFFFFFF == 0x7F800000:
        assert not exact.between
        return
    assert exact.between == (value(rounded) != x)
    if not exact.between:
        return
    low, high = (abs(value(exact.bits(way))) for way in (Direction.DOWN, Direction.UP))
    assert low < abs(x) < high
    assert exact.bits(exact.nearest) == (0 if rounded & 0x7FFFFFFF == 0 else rounded)
    assert {exact.nearest, wrong_way(exact)} == {Direction.DOWN, Direction.UP}
    assert value(exact.bits(greater(exact))) > x
    assert exact.near == (abs(abs(x) - (low + high) / 2) <= (high - low) / 2**tolerance)


def test_with_entry() -> None:
    log = with_entry(StepLog(), 3, 7, Direction.UP)
    log = with_entry(with_entry(log, 3, 2, Direction.DOWN), 1, 0, Direction.UP)
    assert list(log.entries) == [1, 3]
    assert list(log.entries[3].directions()) == [(2, Direction.DOWN), (7, Direction.UP)]
    log = with_entry(with_entry(log, 3, 7, Direction.DOWN), 1, 0, Direction.NONE)
    assert list(log.entries) == [3]
    assert list(log.entries[3].directions()) == [(2, Direction.DOWN), (7, Direction.DOWN)]
    assert with_entry(log, 5, 5, Direction.NONE) == log


def test_there_are_sums_of_every_kind_to_lie_about(logged: LoggedYard) -> None:
    """And honest logs are not empty: the trainer computes in FP32, the auditor in FP64, and they agree all the same."""
    sums = logged.sums(1)
    kinds = {sum_kind(logged.program.body[exact.leaf]) for exact in sums if is_far(exact)}
    assert kinds == set(SumKind)
    assert sum(map(is_near, sums)) >= 10
    assert sum(map(is_far, sums)) >= 100
    assert sum(LogFiles(logged.arena.run).step_log(step).count for step in range(1, STEPS + 1)) >= 5


def test_a_cheat_with_nothing_to_choose_changes_nothing(logged: LoggedYard) -> None:
    exact = next(exact for exact in logged.sums(1) if not exact.between)
    assert cheat_of(logged, bad_entry, course_of(exact, 1)).nudges == ()


def test_a_fork_takes_the_logs_over_under_its_own_job(logged: LoggedYard) -> None:
    source = logged.arena.run
    agreement = logged.yard.market.sign(logged.job())
    made = fork(source, logged.yard.fresh("fork-logged"), agreement, upto=INTERVAL)
    assert made.records() == source.records()[:1]
    opened = RunDirectory.open(made.path)
    assert all(LogFiles(opened).step_log(s) == LogFiles(source).step_log(s) for s in range(1, INTERVAL + 1))
    with pytest.raises(EncodingError):
        LogFiles(opened).step_log(INTERVAL + 1)
    root = Worker(made, logged.trainer, key=logged.yard.market.parties.trainer, logs=Journal(made)).work()
    assert root == source.heads()[-1].head.run_root
    for other in ({"tolerances": 0}, {"precision": 17}, {"policy": 0, "tolerances": 0}):
        job = replace(agreement.job, **other)
        with pytest.raises(ConfigurationError, match=f"expected a job of {next(iter(other))} "):
            fork(source, logged.yard.fresh("other"), logged.yard.market.sign(job), upto=INTERVAL)


# ---------------------------------------------------------------- cheats


@pytest.mark.parametrize(
    ("kind", "long", "step"),
    [
        (SumKind.PLAIN, False, 2),
        (SumKind.PRODUCTS, True, STEPS),
        (SumKind.PRODUCTS, False, 1),
        (SumKind.SCATTER, True, 5),
    ],
)
def test_a_wrong_rounding_far_from_a_tie_with_an_entry(
    logged: LoggedYard, kind: SumKind, long: bool, step: int
) -> None:
    """(a) The log says so; the exact sum does not."""
    right_kind = of_kind(logged, kind, long=long)
    exact = pick(logged, step, lambda x: is_far(x) and right_kind(x))
    cheat = cheat_of(logged, bad_entry, course_of(exact, step))
    assert dict(cheat.logs[step].entries[exact.leaf].directions())[exact.element] == wrong_way(exact)
    match = logged.convict(cheat)
    assert_caught(match, cheat)
    assert match.final.level is (Level.TERMS if long else Level.CHUNKS)


def test_the_auditor_names_the_bad_entry(logged: LoggedYard) -> None:
    """(a) By step, instruction and element; the finding convicts nobody, the roots do."""
    exact = pick(logged, STEPS, is_far)
    cheat = cheat_of(logged, bad_entry, course_of(exact, STEPS))
    committed = publish(logged.arena, cheat, logged.job(), logged.yard.fresh("named").name)
    own, report = audit_logged(committed, logged.auditor, logged.arena.run, logged.yard.fresh("audit-named"))
    assert not compare(own, committed.head).agrees
    assert report.elsewhere == 1
    (found,) = (finding for finding in report.findings if finding.kind == FindingKind.ELSEWHERE)
    assert (found.step, found.value, found.element) == (STEPS, exact.leaf, exact.element)


def test_a_wrong_rounding_far_from_a_tie_without_an_entry(logged: LoggedYard) -> None:
    """(b) The exact sum is all there is to say."""
    exact = pick(logged, 5, is_far)
    cheat = cheat_of(logged, silent_rounding, course_of(exact, 5))
    assert not has_entry(cheat, exact, 5)
    assert_caught(logged.convict(cheat), cheat)


def test_a_drift_is_caught_at_its_first_step_that_no_tie_excuses(logged: LoggedYard) -> None:
    """(c) The greater neighbour in every step, with an entry. What lies near a middle is lawful, until one does not."""
    gradients = {n for n, i in enumerate(logged.program.body) if sum_kind(i) == SumKind.PRODUCTS and i.terms > 4}
    first = pick(logged, 1, lambda x: is_near(x) and x.leaf in gradients)
    cheat = cheat_of(logged, drift, course_of(first, *range(1, STEPS + 1)))
    assert len(cheat.nudges) >= STEPS // 2
    assert all(nudge.exact.bits(nudge.way) == nudge.exact.bits(greater(nudge.exact)) for nudge in cheat.nudges)
    assert is_lawful(cheat.nudges[0])
    assert first_lie(cheat).step > 1
    assert_caught(logged.convict(cheat, levels=5), cheat)


def test_a_near_tie_decided_in_silence(logged: LoggedYard) -> None:
    """(d) A log might have chosen this number. It did not."""
    exact = pick(logged, 7, is_near)
    cheat = cheat_of(logged, silent_rounding, course_of(exact, 7))
    assert not has_entry(cheat, exact, 7)
    assert_caught(logged.convict(cheat), cheat)


def has_entry(cheat: LogCheat, exact: ExactSum, step: int) -> bool:
    found = cheat.logs[step].entries.get(exact.leaf)
    return found is not None and exact.element in found.elements


# ---------------------------------------------------------------- no cheat


def committed_ties(logged: LoggedYard, name: str) -> tuple[LogCheat, Published]:
    """(e) All near ties of one sum, from the first step of the second segment on, to the greater neighbour."""
    ties = Counter(x.leaf for x in logged.sums(INTERVAL + 1) if is_near(x) and greater(x) != x.nearest)
    ((leaf, _),) = ties.most_common(1)
    elements = range(logged.program.body[leaf].numel)
    course = Course(leaf=leaf, elements=elements, steps=range(INTERVAL + 1, STEPS + 1))
    lawful = cheat_of(logged, tie_breaking, course)
    return lawful, publish(logged.arena, lawful, logged.job(), logged.yard.fresh(name).name)


def test_near_ties_that_are_logged_are_the_trainers_to_decide(logged: LoggedYard) -> None:
    """(e) Another run than the honest one, and as right: the auditor follows it to the same root."""
    lawful, committed = committed_ties(logged, "ties")
    assert all(is_lawful(nudge) and nudge.logged for nudge in lawful.nudges)
    moved = [nudge for nudge in lawful.nudges if nudge.way != nudge.exact.nearest]
    assert len(moved) >= 2
    honest = logged.arena.run.records()
    assert [own == their for own, their in zip(honest, committed.run.records(), strict=True)] == [True, False, False]
    own, report = audit_logged(committed, logged.auditor, logged.arena.run, logged.yard.fresh("audit-ties"))
    assert compare(own, committed.head).agrees
    assert report.needed >= len(moved)
    assert report.elsewhere == 0


def test_who_attacks_lawful_logs_loses_its_stake(logged: LoggedYard) -> None:
    """(e) A challenger that takes its own log for the law: the trainer's is the committed one."""
    lawful, committed = committed_ties(logged, "attacked")
    assert lawful.nudges[0].step == INTERVAL + 1
    own = fork(logged.arena.run, logged.yard.fresh("own-log"), committed.agreement, upto=STEPS)
    defender, challenger = (Evidence(run, logged.trainer, CommittedLogs.of(run)) for run in (committed.run, own))
    match = play_out(logged.yard.market, committed.agreement, committed.head, defender, challenger)
    assert_unslashed(logged, committed, match)
    first = next(nudge for nudge in lawful.nudges if nudge.way != nudge.exact.nearest)
    state = match.final
    assert (state.step, state.leaf, state.element) == (first.step, first.exact.leaf, first.exact.element)
    assert state.direction == first.way


def assert_unslashed(logged: LoggedYard, committed: Published, match: ChainMatch) -> None:
    """The challenger lost before both referees; the trainer has its stake still, and the challenger's."""
    assert match.loser is Side.CHALLENGER
    assert_same_end(match)
    job = committed.agreement.job
    assert match.chain.trainer_gain == job.challenger_stake // 2
    assert match.chain.challenger_gain == -job.challenger_stake
    assert logged.yard.market.chain.job_state(job.id).status is JobStatus.ACTIVE
    logged.yard.assert_solvent()


# ---------------------------------------------------------------- words that no log has


def word_with(word: bytes, place: int, code: int) -> bytes:
    raw = bytearray(word)
    raw[place // 4] = raw[place // 4] & ~(3 << 2 * (place % 4)) | code << 2 * (place % 4)
    return bytes(raw)


def test_a_forged_log_tree_without_forgery_is_the_logs_own(logged: LoggedYard) -> None:
    log = LogFiles(logged.arena.run).step_log(4)
    assert log.count
    program = logged.program
    honest, same = LogTree(program, log), ForgedLogTree(program, log, {})
    assert same.root == honest.root
    for leaf in (*log.entries, logged.sums(4)[0].leaf):
        forged = ForgedLogTree(program, log, {(leaf, 0): honest.word(leaf, 0)})
        assert forged.root == honest.root
        assert forged.proof(leaf, 0) == honest.proof(leaf, 0)
        other = ForgedLogTree(program, log, {(leaf, 0): b"\xff" * 32})
        assert other.word(leaf, 0) == b"\xff" * 32
        assert other.root != honest.root


def commit_words(logged: LoggedYard, run: RunDirectory, words: Words, name: str) -> Published:
    """A job whose trainer committed to log trees with these words, and otherwise to this run."""
    market, job = logged.yard.market, logged.job()
    agreement = market.sign(job)
    market.open(agreement)
    forged = with_words(run, logged.yard.fresh(name), agreement, words)
    count = job.checkpoints
    root = Evidence(forged, logged.trainer, CommittedLogs.of(forged)).run_tree(count).root
    head = SignedHead.sign(Head(job_id=job.id, count=count, run_root=root), agreement.domain, market.parties.trainer)
    market.post(head)
    return Published(agreement, forged, head, logged.trainer)


NO_LIE = LogCheat(nudges=(), logs={})


def test_code_3_is_no_excuse(logged: LoggedYard) -> None:
    """(f) A near tie, rounded the wrong way, with a code that means nothing; the challenger was told the words."""
    step, exact = 4, pick(logged, 4, is_near)
    cheat = cheat_of(logged, silent_rounding, course_of(exact, step))
    chunk, place = divmod(exact.element * 4, CHUNK_BYTES)
    word = word_with(LogTree(logged.program, cheat.logs[step]).word(exact.leaf, chunk), place // 4, 3)
    words = {step: {(exact.leaf, chunk): word}}
    plain = publish(logged.arena, cheat, logged.job(), logged.yard.fresh("code3").name)
    committed = commit_words(logged, plain.run, words, "code3-words")
    with pytest.raises(CannotCheck, match="expected log root"):
        audit_logged(committed, logged.auditor, logged.arena.run, logged.yard.fresh("audit-code3"))
    replay, _ = audit_logged(plain, logged.auditor, logged.arena.run, logged.yard.fresh("told"))
    told = with_words(replay, logged.yard.fresh("told-words"), committed.agreement, words)
    defender = ForgedWords(committed.run, logged.trainer, cheat, words)
    challenger = ForgedWords(told, logged.auditor, NO_LIE, words)
    match = play_out(logged.yard.market, committed.agreement, committed.head, defender, challenger)
    assert_same_end(match)
    assert_caught(match, cheat)
    shown = next(played.move for played in match.moves if isinstance(played.move, OpenChunk))
    assert shown.word == word != NO_WORD
    assert match.final.direction == Direction.NONE
    assert logged.yard.market.chain.job_state(committed.agreement.job.id).status is JobStatus.SLASHED


def padded_value(logged: LoggedYard) -> tuple[int, int, int]:
    """A logged sum with chunks that are no chunks: (value, its last chunk, places in it)."""
    for number, instruction in enumerate(logged.program.body):
        if sum_kind(instruction) is not None:
            chunks = -(-instruction.numel // 128)
            if chunks > 2 and chunks & (chunks - 1):
                return number, chunks - 1, instruction.numel - 128 * (chunks - 1)
    raise AssertionError


def test_codes_of_padding_mean_nothing(logged: LoggedYard) -> None:
    """(f) Codes for elements and chunks that do not exist, 3 for others: the run is right, and who attacks it loses."""
    step = INTERVAL + 1
    value_number, last, inside = padded_value(logged)
    far = pick(logged, step, lambda x: is_far(x) and x.element < 128 and x.leaf != value_number)
    log = LogFiles(logged.arena.run).step_log(step)
    tree = LogTree(logged.program, log)
    words = {
        step: {
            (value_number, last): word_with(tree.word(value_number, last), inside, 2),
            (value_number, last + 1): b"\xaa" * 32,
            (far.leaf, 0): word_with(tree.word(far.leaf, 0), far.element, 3),
        }
    }
    committed = commit_words(logged, logged.arena.run, words, "padding")
    with pytest.raises(CannotCheck, match="expected log root"):
        audit_logged(committed, logged.auditor, logged.arena.run, logged.yard.fresh("audit-padding"))
    own = fork(logged.arena.run, logged.yard.fresh("clean"), committed.agreement, upto=STEPS)
    defender = ForgedWords(committed.run, logged.trainer, NO_LIE, words)
    challenger = Evidence(own, logged.trainer, CommittedLogs.of(own))
    match = play_out(logged.yard.market, committed.agreement, committed.head, defender, challenger)
    assert_unslashed(logged, committed, match)
    assert match.final.step == step, "the first record of the segment with the forged words"


# ---------------------------------------------------------------- logs that are not there


@pytest.mark.parametrize("how", ["withheld", "another", "cut short"])
def test_without_the_committed_logs_nobody_can_check_and_nobody_is_slashed(logged: LoggedYard, how: str) -> None:
    """(g) The auditor stops: a challenge on its own guess at the logs would lose (above)."""
    _, committed = committed_ties(logged, how)
    job, before = committed.agreement.job, logged.yard.credits()
    steps = range(job.first_step(1), job.last_step(1) + 1)
    path = log_path(committed.run.path, steps[-1])
    match how:
        case "withheld":
            path.unlink()
        case "another":
            file = LogFile(path, logged.program, job.id, steps)
            file.create()
            for step in steps:
                file.append(step, LogFiles(logged.arena.run).step_log(step))
        case _:
            path.write_bytes(path.read_bytes()[:-1])
    served = RunDirectory.open(committed.run.path)
    with pytest.raises(CannotCheck) as error:
        audit_logged(
            replace(committed, run=served), logged.auditor, logged.arena.run, logged.yard.fresh(f"audit-{how}")
        )
    assert str(committed.run.path) in str(error.value)
    assert logged.yard.market.chain.job_state(job.id).status is JobStatus.ACTIVE
    assert logged.yard.credits() == before
    logged.yard.assert_solvent()
