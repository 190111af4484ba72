"""The ledger: it reads any post at any time, keeps the contracts' clocks to the second, and lets nobody be shut out."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st

from tests.parts import slow_except
from tests.protocol.logged import logged_job
from tests.protocol.records import any_record
from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, SECRET, TRAINER, Liar, Run, make_job
from tests.protocol.town import LIE
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Concession, Head, Job, LogReceipt, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.commitments.terms import MAX_GAMES
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import moves
from tiebreak.protocol.game.messages import Message, Transcript, sign
from tiebreak.protocol.game.moves import Concede, Move, Phase, Side
from tiebreak.protocol.game.sides import Challenger, Defender, choose
from tiebreak.protocol.game.snapshot import Fork, SignedStanding, Snapshot, Standing
from tiebreak.protocol.game.state import GameState, Reason
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.ledger import MAX_NAMED, MAX_SEQUENCE, MAX_STRANGERS, Ledger, Refusal
from tiebreak.protocol.tags import Digest

START = 1_000
STRANGER = PrivateKey.from_int(77)
KEYS = (CLIENT, TRAINER, CHALLENGER, STRANGER)
SIDES = {Side.DEFENDER: TRAINER, Side.CHALLENGER: CHALLENGER}
JOB = replace(make_job(), talk_time=900)
LOGGED = replace(logged_job(), talk_time=900)
DEMANDING = replace(LOGGED, tolerances=LOGGED.tolerances | FINITE_LOSSES)
INFINITY, NAN = 0x7F800000, 0x7FC00000
FALSE, TRUE = Liar(JOB, *LIE), Run(JOB)


def head_of(job: Job, count: int, root: Digest) -> SignedHead:
    return SignedHead.sign(Head(job_id=job.id, count=count, run_root=root), DOMAIN, TRAINER)


HEAD = head_of(JOB, JOB.checkpoints, FALSE.run_tree(JOB.checkpoints).root)
GAME = game_id(HEAD.head, DOMAIN, CHALLENGER.address, 0)


@cache
def walk() -> list[tuple[GameState, Move, GameState]]:
    """The whole game of an honest challenger against the false head: each move with the states before and after it."""
    parties = {Side.DEFENDER: Defender(FALSE), Side.CHALLENGER: Challenger(TRUE, SECRET)}
    start = rules.start(JOB, HEAD.head, GAME, 0)
    played = moves(start, parties, lambda state, move: rules.apply(state, move, max(state.last, state.earliest)))
    return [(one.before, one.move, one.after) for one in played]


@cache
def padded() -> list[tuple[GameState, Move, GameState]]:
    """A walk of the challenger into the padding of the run's tree, which ends the game for the trainer."""
    made, (_, _, state) = walk()[:1], walk()[0]
    while not state.is_over:
        nodes = made[-1][1].nodes  # type: ignore[attr-defined]
        move: Move = choose(nodes, len(nodes) - 1)
        after = rules.apply(state, move, state.last)
        made = [*made, (state, move, after)]
        if not after.is_over and after.phase is Phase.DESCEND:
            opening = Defender(FALSE).move(after, move)
            made = [*made, (after, opening, rules.apply(after, opening, after.last))]
        state = made[-1][2]
    assert state.verdict is not None
    assert (state.verdict.winner, state.verdict.reason) == (Side.DEFENDER, Reason.PADDING)
    return made


class Scene:
    """A ledger, and what its parties say and send to it, each a second after the last."""

    def __init__(self, job: Job = JOB) -> None:
        self.job, self.ledger, self.now = job, Ledger(DOMAIN), START
        self._number = count()

    def post(self, key: PrivateKey, body: posts.Body, game: Digest | None = None) -> "Scene":
        number, sender = next(self._number), key.address
        post = posts.Post.of(body, job_id=self.job.id, number=number, sender=sender, game_id=game)
        self.ledger.read(post, body, self.now)
        return self

    def send(self, key: PrivateKey, wanted: tx.Transaction, *, at: int | None = None) -> "Scene":
        self.now = self.now + 1 if at is None else at
        return self.post(key, posts.TransactionBody(transaction=wanted))

    def create(self) -> "Scene":
        return self.send(CLIENT, tx.CreateJob(job=self.job, signature=self.job.sign(DOMAIN, TRAINER)))

    def accept(self) -> "Scene":
        return self.create().send(TRAINER, tx.AcceptJob(job_id=self.job.id))

    def head(self, head: SignedHead = HEAD) -> "Scene":
        return self.accept().send(TRAINER, tx.PostHead(head=head))

    def challenge(self) -> "Scene":
        return self.head().send(CHALLENGER, tx.Challenge(head=HEAD, nonce=0))

    def talk(self, made: list[tuple[GameState, Move, GameState]]) -> "Scene":
        self.challenge()
        log = Transcript(self.game.state, domain=DOMAIN, challenger=CHALLENGER.address)
        for before, move, _ in made:
            wire = log.sign(move, SIDES[before.mover])
            log.append(wire)
            self.post(SIDES[before.mover], posts.MoveBody(wire=wire), GAME)
        return self

    def play(self, made: list[tuple[GameState, Move, GameState]]) -> "Scene":
        """Moves as transactions."""
        self.challenge()
        for before, move, _ in made:
            self.now = max(self.now, self.game.state.earliest)
            self.send(SIDES[before.mover], tx.MakeMove(game_id=GAME, sequence=before.moves, move=move))
        return self

    @property
    def game(self) -> PublicGame:
        return self.ledger.board.games[GAME]

    def refused(self, name: str, key: PrivateKey, wanted: tx.Transaction, *, at: int) -> None:
        """A transaction that is refused at this instant, and changes nothing."""
        before = deepcopy((self.ledger.claims, self.ledger.board.jobs, self.ledger.board.games))
        with pytest.raises(Refusal) as found:
            self.send(key, wanted, at=at)
        assert found.value.name == name
        assert before == (self.ledger.claims, self.ledger.board.jobs, self.ledger.board.games)


# ---------------------------------------------------------------- every post, after every end


def _slashed() -> Scene:
    other = head_of(JOB, HEAD.head.count, Digest(bytes(32)))
    return Scene().challenge().send(STRANGER, tx.Report(first=HEAD, second=other))


def _entered() -> Scene:
    """A proof from the state that both had signed in their talk."""
    state, move, _ = walk()[-1]
    receipt = TRAINER.sign(Standing.of(state).digest(DOMAIN))
    return Scene().talk(walk()[:-1]).send(CHALLENGER, tx.EnterAndProve.of(state, receipt, move))  # type: ignore[arg-type]


def _conceded(key: PrivateKey) -> Scene:
    return Scene().talk(walk()[:3]).send(key, tx.MakeMove(game_id=GAME, sequence=0, move=Concede()))


def _timed_out(made: int) -> Scene:
    scene = Scene().play(walk()[:made])
    return scene.send(STRANGER, tx.ClaimTimeout(game_id=GAME), at=scene.game.state.deadline + 1)


def _forked(key: PrivateKey) -> Scene:
    fork = Fork.of(*(standing(key, 2, bytes([n]) * 32) for n in (1, 2)))
    return Scene().talk(walk()[:3]).send(STRANGER, tx.ReportFork(fork=fork))


def _after_window(scene: Scene, wanted: tx.Transaction, key: PrivateKey = STRANGER) -> Scene:
    return scene.send(key, wanted, at=scene.now + scene.job.challenge_window + 1)


def _given_up() -> Scene:
    concession = Concession.sign(HEAD.head, STRANGER.address, DOMAIN, TRAINER)
    return Scene().challenge().send(STRANGER, tx.ReportConcession(concession=concession))


def loss_report(job: Job = DEMANDING, bits: int = NAN, at: int = 0, key: PrivateKey = TRAINER) -> tx.ReportLoss:
    """A report of these bits of a loss, in the record of a checkpoint under a head of all."""
    records = [
        StepRecord(step=job.last_step(n), state_root=Digest(bytes(32)), loss_bits=bits if n == at else n)
        for n in range(job.checkpoints)
    ]
    tree = run_tree([record.digest for record in records], job.steps, job.checkpoint_interval)
    head = SignedHead.sign(Head(job_id=job.id, count=job.checkpoints, run_root=tree.root), DOMAIN, key)
    report = tx.ReportLoss(
        head=head, position=at, state_root=records[at].state_root, loss_bits=bits, log_root=records[at].log_root,
        siblings=tuple(tree.proof(at)),
    )  # fmt: skip
    is_forbidden = job.demands_finite_losses and bits & INFINITY == INFINITY
    assert tx.ReportLoss.of(job, head, records) == (report if is_forbidden else None)
    return report


def _forbidden() -> Scene:
    return Scene(DEMANDING).accept().send(STRANGER, loss_report())


def _parted() -> Scene:
    scene = Scene(LOGGED).head(head_of(LOGGED, LOGGED.checkpoints, HEAD.head.run_root))
    return _after_window(scene, tx.Part(job_id=LOGGED.id), CLIENT)


ENDS: dict[str, tuple[Callable[[], Scene], JobStatus | None, Reason | None]] = {
    "before the beginning": (Scene, None, None),
    "offered": (lambda: Scene().create(), JobStatus.OFFERED, None),
    "cancelled": (
        lambda: Scene().create().send(CLIENT, tx.CancelJob(job_id=JOB.id)), JobStatus.CANCELLED, None
    ),
    "accepted": (lambda: Scene().accept(), JobStatus.ACTIVE, None),
    "settled": (lambda: _after_window(Scene().head(), tx.Settle(job_id=JOB.id)), JobStatus.SETTLED, None),
    "abandoned": (lambda: _after_window(Scene().accept(), tx.Abandon(job_id=JOB.id)), JobStatus.ABANDONED, None),
    "parted": (_parted, JobStatus.PARTED, None),
    "in talk": (lambda: Scene().talk(walk()[:-1]), JobStatus.ACTIVE, None),
    "padding in the talk": (lambda: Scene().talk(padded()), JobStatus.ACTIVE, None),
    "proof in the talk": (lambda: Scene().talk(walk()), JobStatus.ACTIVE, None),
    "half way on the board": (lambda: Scene().play(walk()[:5]), JobStatus.ACTIVE, None),
    "lost in padding": (lambda: Scene().play(padded()), JobStatus.ACTIVE, Reason.PADDING),
    "won by a proof": (lambda: Scene().play(walk()), JobStatus.SLASHED, Reason.RECOMPUTED),
    "won by a proof that entered": (_entered, JobStatus.SLASHED, Reason.RECOMPUTED),
    "timeout of the trainer": (lambda: _timed_out(0), JobStatus.SLASHED, Reason.TIMEOUT),
    "timeout of the challenger": (lambda: _timed_out(1), JobStatus.ACTIVE, Reason.TIMEOUT),
    "conceded by the trainer": (lambda: _conceded(TRAINER), JobStatus.SLASHED, Reason.CONCEDED),
    "conceded by the challenger": (lambda: _conceded(CHALLENGER), JobStatus.ACTIVE, Reason.CONCEDED),
    "forked by the trainer": (lambda: _forked(TRAINER), JobStatus.SLASHED, Reason.FORKED),
    "forked by the challenger": (lambda: _forked(CHALLENGER), JobStatus.ACTIVE, Reason.FORKED),
    "slashed beside a game": (_slashed, JobStatus.SLASHED, None),
    "void": (lambda: _slashed().send(CHALLENGER, tx.Reclaim(game_id=GAME)), JobStatus.SLASHED, None),
    "head given up": (_given_up, JobStatus.SLASHED, None),
    "finite losses demanded": (lambda: Scene(DEMANDING).accept(), JobStatus.ACTIVE, None),
    "forbidden loss": (_forbidden, JobStatus.SLASHED, None),
}  # fmt: skip


@cache
def scene_of(end: str) -> Scene:
    """Read only."""
    return ENDS[end][0]()


def standing(key: PrivateKey, sequence: int, snapshot: bytes) -> SignedStanding:
    found = Standing(game_id=GAME, sequence=sequence, snapshot=Digest(snapshot))
    return SignedStanding.under(found, key.sign(found.digest(DOMAIN)))


any_key = st.sampled_from(KEYS)
any_state = st.sampled_from([state for made in (walk(), padded()) for before, _, after in made
                             for state in (before, after) if not state.is_over])  # fmt: skip
any_move = st.sampled_from([move for made in (walk(), padded()) for _, move, _ in made])
digests = st.binary(min_size=32, max_size=32)


@st.composite
def some_standing(draw: st.DrawFn) -> SignedStanding:
    """A signed state of the game, or of a place where there is none."""
    if draw(st.booleans()):
        found = Standing.of(draw(any_state))
        return standing(draw(any_key), found.sequence, found.snapshot)
    return standing(draw(any_key), draw(st.sampled_from([0, 2, len(padded()), len(walk()) - 1])), draw(digests))


@st.composite
def some_message(draw: st.DrawFn) -> bytes:
    """A message of any place of the game, with any move, over what it leads to or over itself."""
    before, move, after = draw(st.sampled_from([*walk(), *padded()]))
    move = draw(st.one_of(st.just(move), any_move, st.just(Concede())))
    previous = Digest(draw(st.one_of(st.just(GAME), digests)))
    message = Message(job_id=JOB.id, game_id=GAME, sequence=before.moves, previous=previous, move=move)
    return sign(message, DOMAIN, draw(any_key), draw(st.sampled_from([after, None])))


@st.composite
def some_head(draw: st.DrawFn) -> SignedHead:
    job = draw(st.sampled_from([JOB, LOGGED]))
    count = draw(st.integers(1, job.checkpoints + 1))
    head = Head(job_id=job.id, count=count, run_root=Digest(draw(st.sampled_from([HEAD.head.run_root, bytes(32)]))))
    return SignedHead.sign(head, DOMAIN, draw(any_key))


@st.composite
def aimed(draw: st.DrawFn, kind: type[tx.Transaction]) -> tx.Transaction:  # noqa: C901  # one case a transaction
    """A transaction about the job or the game, as one could be that does harm."""
    job = draw(st.sampled_from([JOB, LOGGED]))
    sequence = draw(st.sampled_from([1 << 40, (1 << 15) + 1, 0, len(walk()) - 1]))
    state, found = draw(any_state), draw(some_standing())
    entered = tx.Enter(
        game_id=GAME, sequence=draw(st.sampled_from([sequence, state.moves])), snapshot=Snapshot.of(state).encode(),
        signature=draw(any_key).sign(Standing.of(state).digest(DOMAIN)),
    )  # fmt: skip
    match kind:
        case tx.CreateJob:
            return tx.CreateJob(job=job, signature=job.sign(DOMAIN, draw(any_key)))
        case tx.PostHead:
            return tx.PostHead(head=draw(some_head()))
        case tx.Report:
            return tx.Report(first=draw(some_head()), second=draw(some_head()))
        case tx.ReportInconsistency:
            leaves = [Digest(one) for one in draw(st.lists(digests, min_size=2, max_size=5))]
            opened = (
                tx.OpenedHead(head=draw(some_head()), leaf=leaves[n], siblings=tuple(leaves[2:])) for n in range(2)
            )
            return tx.ReportInconsistency(position=draw(st.integers(0, 4)), first=next(opened), second=next(opened))
        case tx.ReportLoss:
            of = draw(st.sampled_from([DEMANDING, LOGGED]))
            report = loss_report(of, draw(st.sampled_from([NAN, INFINITY - 1])), key=draw(any_key))
            return replace(report, position=draw(st.sampled_from([0, 0, 1, 1 << 40, (1 << 64) - 1])))
        case tx.ReportConcession:
            head, prover = draw(some_head()).head, draw(any_key).address
            return tx.ReportConcession(concession=Concession.sign(head, prover, DOMAIN, draw(any_key)))
        case tx.Acknowledge:
            return tx.Acknowledge(receipt=LogReceipt.sign(draw(some_head()).head, DOMAIN, draw(any_key)))
        case tx.Challenge:
            return tx.Challenge(head=draw(some_head()), nonce=draw(st.integers(0, 1)))
        case tx.MakeMove:
            move = draw(st.one_of(any_move, st.just(Concede())))
            return tx.MakeMove(game_id=GAME, sequence=draw(st.sampled_from([sequence, state.moves])), move=move)
        case tx.Enter:
            return entered
        case tx.EnterAndProve:
            fields = {"opened": (HEAD.head.run_root,)}
            return tx.EnterAndProve(entered=entered, move=walk()[-1][1], **fields)  # type: ignore[arg-type]
        case tx.ReportFork:
            return tx.ReportFork(fork=Fork.of(found, draw(some_standing())))
    wanted = draw(any_fields(kind))
    names = {"job_id": job.id, "game_id": GAME}
    return replace(wanted, **{name: value for name, value in names.items() if hasattr(wanted, name)})


@st.composite
def any_post(draw: st.DrawFn, kind: type[posts.Body | tx.Transaction]) -> tuple[posts.Post, posts.Body]:
    """A post of this kind: of random fields, or about the job and the game at hand."""
    match kind:
        case posts.MoveBody:
            wire = draw(st.one_of(some_message(), st.binary(max_size=70)))
            body: posts.Body = posts.MoveBody(wire=wire)
        case posts.ReceiptBody:
            body = posts.ReceiptBody(receipt=draw(some_standing()).encode())
        case _ if issubclass(kind, tx.Transaction):
            wanted = draw(st.one_of(aimed(kind), aimed(kind), any_fields(kind)))
            body = posts.TransactionBody(transaction=wanted)
        case _:
            body = draw(any_fields(kind))
    sender, number = draw(st.sampled_from([CHALLENGER, TRAINER, CHALLENGER, *KEYS])).address, draw(st.integers(0, 9))
    game = GAME if isinstance(body, posts.MoveBody | posts.ReceiptBody) else None
    return posts.Post.of(body, job_id=JOB.id, number=number, sender=sender, game_id=game), body


def any_fields(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Random fields; the job, where one is asked for, is one of two, since most random ones are refused when made."""
    if "job" in kind.kinds():
        rest = {name: field for name, field in kind.kinds().items() if name != "job"}
        shown = {name: st.binary(min_size=65, max_size=65) for name in rest}
        return st.builds(kind, job=st.sampled_from([JOB, LOGGED]), **shown)
    if kind is posts.LibraryBody:
        return st.just(posts.LibraryBody(count=0, logs=0, files=()))
    return any_record(kind)


@pytest.mark.parametrize("end", ENDS)
def test_each_scripted_job_ends_with_its_expected_verdict(end: str) -> None:
    _, status, reason = ENDS[end]
    board = scene_of(end).ledger.board
    assert [job.status for job in board.jobs.values()] == ([] if status is None else [status])
    verdicts = [game.state.verdict for game in board.games.values()]
    assert [verdict.reason for verdict in verdicts if verdict] == ([] if reason is None else [reason])


KINDS = [*(kind for kind in posts.BODIES.values() if kind is not posts.TransactionBody), *tx.TRANSACTIONS]


@pytest.mark.parametrize("kind", slow_except(KINDS, posts.OfferBody, tx.Settle), ids=lambda kind: kind.__name__)
def test_ledger_accepts_or_refuses_any_post_in_any_job_state(kind: type[Any], cases: Callable[[int], None]) -> None:
    """What it does not take it refuses, by an error that all readers of posts expect, and then nobody owes more."""
    read, is_hostile = 0, kind in (posts.MoveBody, posts.ReceiptBody, tx.EnterAndProve, tx.Enter, tx.ReportFork)

    @settings(max_examples=24 if is_hostile else 6, suppress_health_check=list(HealthCheck), phases=[Part.generate])
    @given(st.data())
    def reads(data: st.DataObject) -> None:
        nonlocal read
        for end in ENDS:
            scene = deepcopy(scene_of(end))
            ledger, at = scene.ledger, scene.now
            for post, body in [data.draw(any_post(kind)) for _ in range(2)]:
                at += data.draw(st.sampled_from([0, 1, -3, JOB.talk_time, JOB.challenge_window]))
                before, is_refused = dict(ledger.claims), True
                with suppress(Refusal):
                    ledger.read(post, body, at)
                    is_refused = False
                assert not is_refused or ledger.claims == before
                read += 1

    reads()
    cases(read)


# ---------------------------------------------------------------- forbidden losses


def test_a_report_opens_any_signed_checkpoint_with_a_forbidden_loss(cases: Callable[[], None]) -> None:
    for at in range(DEMANDING.checkpoints):
        for bits in (NAN, INFINITY, INFINITY | 1 << 31, INFINITY | 1, (1 << 32) - 1):
            scene = Scene(DEMANDING).accept().send(STRANGER, loss_report(bits=bits, at=at))
            found, claims = scene.ledger.board.jobs[DEMANDING.id], scene.ledger.claims
            assert (found.status, found.nonfinite) == (JobStatus.SLASHED, True)
            assert claims[STRANGER.address] == DEMANDING.trainer_stake // 2
            assert claims[CLIENT.address] == 0, "the reward is the client's again"
            cases()


def test_no_report_of_a_loss_convicts_an_honest_trainer(cases: Callable[[], None]) -> None:
    good, scene = loss_report(), Scene(DEMANDING)
    concession = SignedHead(head=good.head.head, signature=Concession.sign(
        good.head.head, STRANGER.address, DOMAIN, TRAINER).signature)  # fmt: skip
    other = loss_report(replace(DEMANDING, nonce=8))
    past = head_of(DEMANDING, DEMANDING.checkpoints + 1, good.head.head.run_root)
    hostile = {
        "finite": ("FiniteLoss", loss_report(bits=INFINITY - 1)),
        "the least finite": ("FiniteLoss", loss_report(bits=(1 << 31) + INFINITY - 1)),
        "other bits": ("WrongRoot", replace(good, loss_bits=INFINITY)),
        "another state": ("WrongRoot", replace(good, state_root=Digest(bytes([1] * 32)))),
        "another log": ("WrongRoot", replace(good, log_root=Digest(bytes([1] * 32)))),
        "another place": ("WrongRoot", replace(good, position=1)),
        "behind the head": ("NoRecord", replace(good, position=DEMANDING.checkpoints)),
        "far behind": ("NoRecord", replace(good, position=(1 << 64) - 1)),
        "another head": ("WrongRoot", replace(good, head=head_of(DEMANDING, 1, HEAD.head.run_root))),
        "a head behind the last": ("HeadOutOfRange", replace(good, head=past)),
        "few siblings": ("WrongSiblingCount", replace(good, siblings=good.siblings[1:])),
        "many siblings": ("WrongSiblingCount", replace(good, siblings=(*good.siblings, Digest(bytes(32))))),
        "signed by the client": ("WrongSigner", loss_report(key=CLIENT)),
        "a concession's signature": ("WrongSigner", replace(good, head=concession)),
        "of another job": ("WrongJobStatus", other),
    }
    scene.refused("WrongJobStatus", STRANGER, good, at=scene.now)
    scene.create().refused("WrongJobStatus", STRANGER, good, at=scene.now)
    scene.send(TRAINER, tx.AcceptJob(job_id=DEMANDING.id))
    for name, wanted in hostile.values():
        scene.refused(name, STRANGER, wanted, at=scene.now)
        cases()
    lax = Scene(LOGGED).accept()
    lax.refused("FiniteLossesNotDemanded", STRANGER, loss_report(LOGGED), at=lax.now)
    scene.send(STRANGER, good)
    scene.refused("WrongJobStatus", STRANGER, good, at=scene.now)
    parted = _parted()
    parted.refused("WrongJobStatus", STRANGER, replace(good, head=head_of(LOGGED, 1, bytes(32))), at=parted.now)  # type: ignore[arg-type]


def test_only_a_trainer_whose_job_forbids_losses_parts_before_its_first_head() -> None:
    scene, part = Scene(DEMANDING).accept(), tx.Part(job_id=DEMANDING.id)
    begun, due = scene.now, scene.ledger.board.jobs[DEMANDING.id].due
    for at in (begun, due, due + 1):
        scene.refused("NoHeadPosted", CLIENT, part, at=at)
        scene.refused("NotAParty", STRANGER, part, at=at)
    scene.refused("WindowClosed", TRAINER, part, at=due + 1)
    for at in (begun, due):
        other = deepcopy(scene)
        other.refused("WindowOpen", CLIENT, tx.Abandon(job_id=DEMANDING.id), at=at)
        other.send(TRAINER, part, at=at)
        assert other.ledger.board.jobs[DEMANDING.id].status is JobStatus.PARTED
        assert (other.ledger.claim(TRAINER.address), other.ledger.claim(CLIENT.address)) == (0, 0)
    lax = Scene(LOGGED).accept()
    lax.refused("NoHeadPosted", TRAINER, tx.Part(job_id=LOGGED.id), at=lax.now)


# ---------------------------------------------------------------- who may challenge on paper


def strangers(number: int) -> list[PrivateKey]:
    """Keys that were made for one challenge each."""
    return [PrivateKey.from_int(10_000 + n) for n in range(number)]


def open_games(scene: Scene) -> list[Any]:
    return [game.challenger for game in scene.ledger.board.open_games(scene.job.id)]


def flood(scene: Scene, keys: list[PrivateKey]) -> int:
    """Challenges by all of them, as often as the ledger lets each. Returns how many games began."""
    began = 0
    for key in keys:
        with suppress(Refusal):
            for nonce in count():
                scene.send(key, tx.Challenge(head=HEAD, nonce=nonce))
                began += 1
    return began


def concede(scene: Scene, key: PrivateKey) -> None:
    game = game_id(HEAD.head, DOMAIN, key.address, 0)
    scene.send(key, tx.MakeMove(game_id=game, sequence=0, move=Concede()))


def name_auditors(scene: Scene, *keys: PrivateKey, by: PrivateKey = CLIENT) -> None:
    scene.post(by, posts.AuditorsBody(accounts=tuple(key.address for key in keys)))


def test_throwaway_keys_cannot_keep_named_auditors_from_challenging() -> None:
    scene = Scene().head()
    thrown = strangers(40)
    assert flood(scene, thrown) == MAX_STRANGERS == 4
    scene.refused("TooManyGames", CHALLENGER, tx.Challenge(head=HEAD, nonce=0), at=scene.now)
    name_auditors(scene, CHALLENGER, by=TRAINER)
    name_auditors(scene, CHALLENGER, by=STRANGER)
    scene.refused("TooManyGames", CHALLENGER, tx.Challenge(head=HEAD, nonce=0), at=scene.now)
    name_auditors(scene, CHALLENGER)
    for key in (CHALLENGER, CLIENT):
        scene.send(key, tx.Challenge(head=HEAD, nonce=0))
        game = scene.ledger.board.games[game_id(HEAD.head, DOMAIN, key.address, 0)]
        assert (game.rank, game.stake) == (0, JOB.challenger_stake), "strangers make it no dearer"
        scene.refused("TooManyGames", key, tx.Challenge(head=HEAD, nonce=1), at=scene.now)
    # One that is over makes no room for another: nobody can have a trainer play for as long as its window is open.
    concede(scene, thrown[0])
    assert flood(scene, thrown[4:]) == 0
    scene.refused("TooManyGames", thrown[0], tx.Challenge(head=HEAD, nonce=1), at=scene.now)


def test_client_with_many_keys_cannot_exceed_the_games_per_job() -> None:
    """It names keys before they challenge, or after, and others to make room for more strangers."""
    scene, keys = Scene().head(), strangers(60)
    for start in range(0, 60, 5):
        flood(scene, keys[start : start + 3])
        name_auditors(scene, *keys[start : start + 5])
        flood(scene, keys[start : start + 5])
    flood(scene, [CLIENT, *keys])
    assert len(open_games(scene)) == len(set(open_games(scene))) == 1 + MAX_NAMED + MAX_STRANGERS <= MAX_GAMES
    assert scene.ledger.board.jobs[JOB.id].crowd <= MAX_GAMES, "allowances grow no more than the job's times bear"
    assert len(scene.ledger.board.jobs[JOB.id].auditors) == MAX_NAMED


def test_auditors_are_named_only_for_existing_jobs_up_to_a_limit() -> None:
    scene = Scene()
    name_auditors(scene, CHALLENGER)
    assert not scene.ledger.board.jobs
    scene.head()
    name_auditors(scene, CHALLENGER, CHALLENGER, STRANGER)
    name_auditors(scene, STRANGER, *strangers(20))
    found = scene.ledger.board.jobs[JOB.id].auditors
    assert found == tuple(key.address for key in (CHALLENGER, STRANGER, *strangers(MAX_NAMED - 2)))


# ---------------------------------------------------------------- clocks, to the second


def test_ledger_settles_and_abandons_only_after_the_last_second() -> None:
    scene = Scene().head()
    end, settle = scene.ledger.board.jobs[JOB.id].window_end, tx.Settle(job_id=JOB.id)
    for at in (end - 1, end):
        scene.refused("WindowOpen", STRANGER, settle, at=at)
    scene.send(STRANGER, settle, at=end + 1)
    assert scene.ledger.board.jobs[JOB.id].status is JobStatus.SETTLED

    scene = Scene().accept()
    due, abandon = scene.ledger.board.jobs[JOB.id].due, tx.Abandon(job_id=JOB.id)
    for at in (due - 1, due):
        scene.refused("WindowOpen", STRANGER, abandon, at=at)
    late = deepcopy(scene)
    scene.send(TRAINER, tx.PostHead(head=HEAD), at=due)
    late.refused("WindowClosed", TRAINER, tx.PostHead(head=HEAD), at=due + 1)
    late.send(STRANGER, abandon, at=due + 1)
    assert late.ledger.board.jobs[JOB.id].status is JobStatus.ABANDONED


@pytest.mark.parametrize("audit_time", [0, 5_000])
def test_ledger_lets_a_challenge_begin_until_the_last_second(audit_time: int) -> None:
    job = replace(JOB, audit_time=audit_time)
    head = head_of(job, job.checkpoints, HEAD.head.run_root)
    scene = Scene(job).head(head)
    end, challenge = scene.ledger.board.jobs[job.id].window_end, tx.Challenge(head=head, nonce=0)
    assert end == scene.now + max(job.challenge_window, job.checkpoints * audit_time)
    deepcopy(scene).refused("WindowClosed", CHALLENGER, challenge, at=end + 1)
    for at in (end - 1, end):
        other = deepcopy(scene)
        other.send(CHALLENGER, challenge, at=at)
        other.refused("OpenGames", TRAINER, tx.Settle(job_id=job.id), at=end + 1)


def test_ledger_lets_each_side_leave_a_job_only_after_its_deadline() -> None:
    job = replace(LOGGED, deadline=500)
    scene, part = Scene(job).head(head_of(job, 1, HEAD.head.run_root)), tx.Part(job_id=job.id)
    found = scene.ledger.board.jobs[job.id]
    for key, end in ((CLIENT, found.accepted + 500), (TRAINER, found.last_progress + job.challenge_window)):
        other = deepcopy(scene)
        for at in (end - 1, end):
            other.refused("WindowOpen", key, part, at=at)
        other.send(key, part, at=end + 1)
        assert other.ledger.board.jobs[job.id].status is JobStatus.PARTED


def test_ledger_takes_a_move_until_the_deadline_and_a_timeout_after_it(cases: Callable[[], None]) -> None:
    scene, made = Scene().challenge(), walk()
    claim = tx.ClaimTimeout(game_id=GAME)
    for before, move, _ in made:
        key, deadline = SIDES[before.mover], scene.game.state.deadline
        wanted = tx.MakeMove(game_id=GAME, sequence=before.moves, move=move)
        if before.phase is Phase.PROVE:
            earliest = scene.game.state.earliest
            assert earliest == scene.now + JOB.clock
            deepcopy(scene).refused("TooEarly", key, wanted, at=earliest - 1)
            for at in (earliest, earliest + 1):
                deepcopy(scene).send(key, wanted, at=at)
        for at in (deadline - 1, deadline):
            other = deepcopy(scene)
            other.refused("ClockRunning", STRANGER, claim, at=at)
            other.send(key, wanted, at=at)
        other = deepcopy(scene)
        other.refused("ClockExhausted", key, wanted, at=deadline + 1)
        other.send(STRANGER, claim, at=deadline + 1)
        assert other.game.state.verdict.winner is before.mover.other  # type: ignore[union-attr]
        scene.send(key, wanted, at=max(scene.now + 1, scene.game.state.earliest))
        cases()
    assert scene.ledger.board.jobs[JOB.id].status is JobStatus.SLASHED


def test_ledger_accepts_a_signed_state_only_during_off_chain_play() -> None:
    scene = Scene().talk(walk()[:5])
    state = walk()[4][2]
    signer = SIDES[walk()[4][0].mover]
    sender = SIDES[walk()[4][0].mover.other]
    enter = tx.Enter.of(state, signer.sign(Standing.of(state).digest(DOMAIN)))
    over = scene.game.started + JOB.talk_time
    deepcopy(scene).refused("TalkIsOver", sender, enter, at=over)
    scene.send(sender, enter, at=over - 1)
    assert scene.game.state.moves == 5
    scene.refused("StaleState", sender, enter, at=over - 1)
    far = replace(enter, sequence=MAX_SEQUENCE + 1)
    scene.refused("IndexOutOfRange", sender, far, at=over - 1)
    proof = tx.EnterAndProve(entered=far, move=walk()[-1][1], opened=())  # type: ignore[arg-type]
    scene.refused("IndexOutOfRange", CHALLENGER, proof, at=over - 1)
