"""The board where there is no chain: parties post what they would have sent there, and anybody applies the rules.

A hub gives every post a place and an instant. A `Ledger` takes those that are transactions, in their order, and does
with each what the contracts would do at that instant, or refuses it with the name of the contract's error. So everybody
who has the posts comes to the same board, and a hub that leaves out or reorders posts has signed for it.

Money is counted on paper: `claims` says what each account is owed for what it gained, and owes for what it lost. No
escrow stands behind it, so nothing can be withdrawn, and parties that deal like this trust each other to pay their
debts. There are no seats: their draw needs a chain. A state enters a game if the moves that led to it were posted, too.

A stake on paper deters no key that was made for one challenge. So an account has one game in a job, at the price of the
first one; the client and the auditors that it names (kind 13) always have theirs, and all strangers share a few.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job, LogReceipt, SignedHead, game_id
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Concede, Phase, Side
from tiebreak.protocol.game.snapshot import Standing, opened
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.numbers.float32 import is_finite
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import BURNED, Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.posts import AuditorsBody, Body, MoveBody, Post, ReceiptBody, TransactionBody
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import fold

MAX_SEQUENCE: Final = 1 << 15
MAX_NAMED: Final = 7
"""Auditors of a job that count as named: the first ones. With the client and strangers these are below `MAX_GAMES`."""
MAX_STRANGERS: Final = 4
"""Games of a job, open or over, that accounts may have which nobody named."""
MAX_EARLY: Final = 64
"""Messages that are kept of a game that has not begun here."""
MAX_EARLY_BYTES: Final = 1 << 24
"""Bytes of such messages of all games; those of the game that was talked about first are forgotten first."""

Effect = Callable[[], None]
_T = TypeVar("_T")


class Refusal(VerificationError):
    """A transaction that the contracts would refuse. `name` is that of their error."""

    def __init__(self, name: str, detail: str = "") -> None:
        self.name = name
        super().__init__(f"{name}: {detail}" if detail else name)


class PaperBoard(Board):
    """A board whose credits are claims: nothing was paid in, so nothing can be withdrawn, and no price grows."""

    def credit(self, account: Address) -> int:  # noqa: ARG002
        return 0

    def begin(self, game: PublicGame) -> None:
        super().begin(game)
        game.rank = 0

    def price(self, job: PublicJob, more: int = 0) -> int:  # noqa: ARG002
        return job.job.challenger_stake


class Ledger:
    """Jobs and games as the posts of a hub make them."""

    def __init__(self, domain: Domain) -> None:
        self.board = PaperBoard()
        self.domain = domain
        self.claims: dict[Address, int] = {}
        """Wei that each account has gained (positive) or lost, as if every stake and reward had been deposited."""
        self.roots: dict[Digest, Digest] = {}
        """The run root of each job's last posted head."""
        self._early: dict[Digest, list[tuple[bool, bytes]]] = {}
        self._early_bytes = 0
        self._talks: dict[Digest, Transcript] = {}

    def claim(self, account: Address) -> int:
        return self.claims.get(account, 0)

    def gains(self) -> dict[Address, int]:
        """The wei that each account has gained or lost in jobs and games that are over. Open stakes do not count."""
        found, jobs, games = dict(self.claims), self.board.jobs.values(), self.board.games.values()
        staked = [(job.job.client, job.job.reward) for job in jobs if not job.is_over]
        staked += [(job.job.trainer, job.job.trainer_stake) for job in jobs if job.status is JobStatus.ACTIVE]
        for account, wei in staked + [(game.challenger, game.stake) for game in games if not game.is_over]:
            found[account] += wei
        return found

    # ------------------------------------------------------------------ posts

    def read(self, post: Post, body: Body, at: int) -> None:
        """Take a post whose signatures are checked. Raises `Refusal` for a transaction that is refused, and no more."""
        match body:
            case TransactionBody(transaction=wanted):
                self.take(post.sender, wanted, at)
            case MoveBody(wire=wire):
                self.hear(post.game_id, wire)
            case ReceiptBody(receipt=receipt):
                self.hear(post.game_id, receipt, is_receipt=True)
            case AuditorsBody(accounts=accounts):
                if (found := self.board.jobs.get(post.job_id)) is not None and post.sender == found.job.client:
                    found.auditors = tuple(dict.fromkeys((*found.auditors, *accounts)))[:MAX_NAMED]

    def hear(self, game: Digest, data: bytes, *, is_receipt: bool = False) -> None:
        """Record a message or a receipt of a game's talk, so that a signed state can be entered later."""
        if game in self._talks:
            _note(self._talks[game], is_receipt, data)
            return
        early = self._early.setdefault(game, [])
        if len(early) < MAX_EARLY:
            early.append((is_receipt, data))
            self._early_bytes += _size(data)
        while self._early_bytes > MAX_EARLY_BYTES:
            self._forget_early(next(iter(self._early)))

    def _forget_early(self, game: Digest) -> list[tuple[bool, bytes]]:
        found = self._early.pop(game, [])
        self._early_bytes -= sum(_size(data) for _, data in found)
        return found

    def take(self, sender: Address, wanted: tx.Transaction, now: int) -> None:
        """Carry out a transaction, at an instant not before the last. Raises `Refusal`; then nothing has changed."""
        self.judge(sender, wanted, now)()
        self.board.height += 1

    def judge(self, sender: Address, wanted: tx.Transaction, now: int) -> Effect:
        """The effect of a transaction. Raises `Refusal` for one that the contracts would refuse."""
        match wanted:
            case tx.CreateJob():
                return self._create(sender, wanted, now)
            case tx.Withdraw():
                raise Refusal("NothingToWithdraw", "there is no money without a chain")
            case tx.Challenge():
                return self._challenge(sender, wanted, now)
            case tx.OnSeats():
                raise Refusal("NoSeats", "there are no seats without a chain")
        job, game = tx.subject_of(wanted)
        if game is not None:
            return self._play(sender, wanted, game, now)
        assert job is not None, "all others name a job"
        return self._on_job(sender, wanted, self.board.jobs.get(job), now)

    # ------------------------------------------------------------------ jobs

    def _create(self, sender: Address, wanted: tx.CreateJob, now: int) -> Effect:
        job = wanted.job
        _require(sender == job.client, "WrongCaller")
        _require(not job.seats, "InvalidJob", "seats need a chain")
        _signed(lambda: keys.verify(job.digest(self.domain), wanted.signature, job.trainer))
        _require(job.id not in self.board.jobs, "JobExists")

        def effect() -> None:
            self.board.jobs[job.id] = PublicJob(job=job, last_progress=now)
            self._pay(job.client, -job.reward)

        return effect

    def _on_job(  # noqa: C901  # one case a transaction
        self, sender: Address, wanted: tx.Transaction, found: PublicJob | None, now: int
    ) -> Effect:
        needed = JobStatus.OFFERED if isinstance(wanted, tx.CancelJob | tx.AcceptJob) else JobStatus.ACTIVE
        if found is None or found.status is not needed:
            raise Refusal("WrongJobStatus", f"expected {needed.name}, got {'none' if found is None else found.status}")
        job, both = found.job, found.job.reward + found.job.trainer_stake
        match wanted:
            case tx.CancelJob():
                _require(sender == job.client, "WrongCaller")
                return partial(self._end, found, JobStatus.CANCELLED, now, {job.client: job.reward})
            case tx.AcceptJob():
                _require(sender == job.trainer, "WrongCaller")
                return partial(self._accept, found, now)
            case tx.PostHead(head=head):
                self._check_head(head, job)
                _require(head.head.count > found.head_count, "HeadNotAscending")
                _require(now <= found.due, "WindowClosed")
                return partial(self._post, found, head, now)
            case tx.Report(first=first, second=second):
                same = (first.head.job_id, first.head.count) == (second.head.job_id, second.head.count)
                _require(same and first.head.run_root != second.head.run_root, "NoEquivocation")
                return self._slashing(found, sender, now, (first, second), "equivocation")
            case tx.ReportInconsistency():
                for opening in (wanted.first, wanted.second):
                    _check_opened(wanted.position, opening, job)
                _require(wanted.first.leaf != wanted.second.leaf, "NoInconsistency")
                return self._slashing(found, sender, now, (wanted.first.head, wanted.second.head), "inconsistency")
            case tx.ReportLoss(head=head):
                _require(job.demands_finite_losses, "FiniteLossesNotDemanded")
                _require(not is_finite(wanted.loss_bits), "FiniteLoss")
                opening = tx.OpenedHead(head=head, leaf=wanted.record(job).digest, siblings=wanted.siblings)
                _check_opened(wanted.position, opening, job)
                return self._slashing(found, sender, now, (head,), "nonfinite")
            case tx.ReportConcession(concession=conceded):
                _signed(lambda: conceded.verify(job, self.domain))
                return partial(self._slash, found, conceded.prover, now)
            case tx.Acknowledge(receipt=receipt):
                return self._acknowledge(found, receipt)
            case tx.Settle():
                _require(found.has_final_head, "FinalHeadMissing")
                _require(not found.lacks_receipts, "ReceiptMissing")
                self._require_over(found, found.window_end, now)
                return partial(self._end, found, JobStatus.SETTLED, now, {job.trainer: both})
            case tx.Abandon():
                _require(not (job.is_logged and found.head_count), "HeadsPosted")
                _require(not found.has_final_head, "FinalHeadPosted")
                self._require_over(found, found.due, now)
                return partial(self._end, found, JobStatus.ABANDONED, now, {job.client: both})
        return self._part(sender, found, now)

    def _accept(self, found: PublicJob, now: int) -> None:
        found.accept(now)
        self._pay(found.job.trainer, -found.job.trainer_stake)

    def _acknowledge(self, found: PublicJob, receipt: LogReceipt) -> Effect:
        count, root = receipt.head.count, receipt.head.run_root
        _require(found.job.is_logged, "NotLogged")
        _require(count > found.receipts, "ReceiptNotAscending")
        _require(count <= found.head_count, "HeadNotPosted")
        _require(count < found.head_count or self.roots[found.id] == root, "WrongReceipt")
        _signed(lambda: receipt.verify(found.job, self.domain))
        return lambda: setattr(found, "receipts", count)

    def _part(self, sender: Address, found: PublicJob, now: int) -> Effect:
        job = found.job
        _require(job.is_logged, "NotLogged")
        _require(sender in (job.client, job.trainer), "NotAParty")
        if not found.head_count:
            _require(sender != job.client and job.demands_finite_losses, "NoHeadPosted")
            _require(now <= found.due, "WindowClosed")
        _require(found.lacks_receipts, "ReceiptsComplete")
        end = found.parting if sender == job.client else found.window_end
        self._require_over(found, end if found.head_count else now - 1, now)
        paid = {job.trainer: found.earned + job.trainer_stake, job.client: job.reward - found.earned}
        return partial(self._end, found, JobStatus.PARTED, now, paid)

    def _post(self, found: PublicJob, head: SignedHead, now: int) -> None:
        found.post(head.head.count, now)
        self.roots[found.id] = head.head.run_root

    def _slashing(
        self, found: PublicJob, prover: Address, now: int, heads: tuple[SignedHead, ...], kind: str
    ) -> Effect:
        for head in heads:
            _require(head.head.job_id == found.id, "WrongSigner")
            self._check_head(head, found.job)

        def effect() -> None:
            setattr(found, kind, True)
            self._slash(found, prover, now)

        return effect

    def _slash(self, found: PublicJob, prover: Address, now: int) -> None:
        job, half = found.job, found.job.trainer_stake // 2
        self._end(found, JobStatus.SLASHED, now, {job.client: job.reward})
        self._pay(prover, half - found.relief * len(self.board.open_games(found.id)))
        self._pay(BURNED, job.trainer_stake - half)

    def _end(self, found: PublicJob, status: JobStatus, now: int, paid: dict[Address, int]) -> None:
        found.status, found.ended = status, now
        for account, wei in paid.items():
            self._pay(account, wei)

    def _pay(self, account: Address, wei: int) -> None:
        self.claims[account] = self.claim(account) + wei

    def _check_head(self, head: SignedHead, job: Job) -> None:
        _require(1 <= head.head.count <= job.checkpoints, "HeadOutOfRange")
        _signed(lambda: head.verify(job, self.domain))

    def _require_over(self, found: PublicJob, end: int, now: int) -> None:
        _require(now > end, "WindowOpen", f"until {end}")
        _require(not self.board.open_games(found.id), "OpenGames")

    # ------------------------------------------------------------------ games

    def _challenge(self, sender: Address, wanted: tx.Challenge, now: int) -> Effect:
        head = wanted.head
        if (found := self.board.jobs.get(head.head.job_id)) is None or found.status is not JobStatus.ACTIVE:
            raise Refusal("WrongJobStatus")
        self._require_room(sender, found)
        self._check_head(head, found.job)
        _require(now <= found.window_end, "WindowClosed")
        number = game_id(head.head, self.domain, sender, wanted.nonce)
        _require(number not in self.board.games, "GameExists")
        state = rules.start(found.job, head.head, number, now)
        made = PublicGame(id=number, job=found, challenger=sender, head=head, state=state, started=now)

        def effect() -> None:
            self.board.begin(made)
            self._pay(sender, -made.stake)
            self._talks[number] = Transcript(state, domain=self.domain, challenger=sender)
            for is_receipt, data in self._forget_early(number):
                _note(self._talks[number], is_receipt, data)

        return effect

    def _require_room(self, sender: Address, found: PublicJob) -> None:
        challengers = [game.challenger for game in self.board.games_of(found.id)]
        named = (found.job.client, *found.auditors)
        strangers = sum(account not in named for account in challengers)
        _require(sender not in challengers and (sender in named or strangers < MAX_STRANGERS), "TooManyGames")

    def _play(self, sender: Address, wanted: tx.Transaction, number: Digest, now: int) -> Effect:
        if (game := self.board.games.get(number)) is None:
            raise Refusal("NoSuchGame")
        _require(not game.is_over, "GameIsOver")
        if isinstance(wanted, tx.Reclaim):
            _require(game.job.status is JobStatus.SLASHED, "WrongJobStatus")
            return partial(self._void, game, now)
        state, line = _ruled("IllegalMove", lambda: self._after(game, sender, wanted, now))
        _require(not state.is_over or game.job.status is JobStatus.ACTIVE, "WrongJobStatus")
        return partial(self._moved, game, state, line, now, entered=isinstance(wanted, tx.Enter | tx.EnterAndProve))

    def _after(self, game: PublicGame, sender: Address, wanted: Any, now: int) -> tuple[GameState, list[Any]]:
        """The state that a transaction leads to, and the line of moves to it."""
        side = {game.job.job.trainer: Side.DEFENDER, game.challenger: Side.CHALLENGER}.get(sender)
        if sender == game.job.job.trainer == game.challenger:
            side = Side.DEFENDER
        match wanted:
            case tx.ClaimTimeout():
                return _ruled("ClockRunning", lambda: rules.timeout(game.state, now)), game.moves
            case tx.ReportFork(fork=fork):
                return rules.forked(game.state, self._forked(game, fork)), game.moves
            case tx.MakeMove(move=Concede() as move):
                if side is None:
                    raise Refusal("NotASide")
                return rules.concede(game.state, side, now), [*game.moves, move]
            case tx.MakeMove(move=move):
                _require(move.KIND is game.state.phase and wanted.sequence == game.state.moves, "WrongPhase")
                _require(sender == game.mover(), "NotYourTurn")
                _require(now <= game.state.deadline, "ClockExhausted")
                _require(now >= game.state.earliest, "TooEarly")
                return rules.apply(game.state, move, now), [*game.moves, move]
            case tx.Enter():
                _require(side is not None, "NotASide")
                _require(game.state.talks(now), "TalkIsOver")
                _require(wanted.sequence > game.state.moves, "StaleState")
                later, line = self._signed(game, sender, wanted)
                return rules.enter(game.state, later, now), line
        _require(sender == game.challenger, "NotYourTurn")
        later, line = self._signed(game, sender, wanted.entered)
        _require(later.phase is Phase.PROVE, "WrongPhase")
        _require(wanted.opened == opened(later), "WrongOpened")
        return rules.prove_signed(game.state, later, wanted.move), [*line, wanted.move]

    def _signed(self, game: PublicGame, sender: Address, wanted: tx.Enter) -> tuple[GameState, list[Any]]:
        _require(wanted.sequence <= MAX_SEQUENCE, "IndexOutOfRange")
        other = game.challenger if sender == game.job.job.trainer else game.job.job.trainer
        snapshot = tagged_hash(Tag.SNAPSHOT, wanted.snapshot)
        standing = Standing(game_id=game.id, sequence=wanted.sequence, snapshot=snapshot)
        _signed(lambda: keys.verify(standing.digest(self.domain), wanted.signature, other))
        talk = self._talks[game.id]
        if (later := talk.stood(wanted.sequence, snapshot)) is None:
            raise Refusal("UnknownState", "expected a state that posted moves led to, got another")
        return later, list(talk.line[: wanted.sequence])

    def _forked(self, game: PublicGame, fork: Any) -> Side:
        for side, account in ((Side.DEFENDER, game.job.job.trainer), (Side.CHALLENGER, game.challenger)):
            with suppress(VerificationError):
                fork.verify(self.domain, account)
                return side
        raise Refusal("NoFork")

    def _moved(self, game: PublicGame, state: GameState, line: list[Any], now: int, *, entered: bool) -> None:
        game.state, game.moves = state, line
        game.entries += entered
        game.height = self.board.height + 1
        if (verdict := state.verdict) is None:
            return
        game.ended = now
        if verdict.winner is Side.DEFENDER:
            self._pay(game.job.job.trainer, game.stake // 2)
            self._pay(BURNED, game.stake - game.stake // 2)
        else:
            self._pay(game.challenger, game.stake)
            self._slash(game.job, game.challenger, now)

    def _void(self, game: PublicGame, now: int) -> None:
        game.void, game.ended = True, now
        self._pay(game.challenger, game.stake + game.job.relief)


def _size(data: bytes) -> int:
    """The memory that a kept message takes, in bytes: its own, and an estimate of the objects that hold it."""
    return 128 + len(data)


def _note(talk: Transcript, is_receipt: bool, data: bytes) -> None:
    """Add a message or a receipt to a talk. Anybody can post anything, so what does not fit is ignored."""
    with suppress(VerificationError):
        (talk.acknowledge if is_receipt else talk.append)(data)


def _require(holds: bool, name: str, detail: str = "") -> None:
    if not holds:
        raise Refusal(name, detail)


def _signed(check: Callable[[], None]) -> None:
    try:
        check()
    except VerificationError as error:
        raise Refusal("WrongSigner", str(error)) from error


def _ruled(name: str, rule: Callable[[], _T]) -> _T:
    try:
        return rule()
    except IllegalMove as error:
        raise Refusal(name, str(error)) from error


def _check_opened(position: int, opening: tx.OpenedHead, job: Job) -> None:
    head = opening.head.head
    _require(position < head.count, "NoRecord")
    _require(len(opening.siblings) == job.run_depth, "WrongSiblingCount")
    _require(fold(opening.leaf, position, opening.siblings) == head.run_root, "WrongRoot")


def job_of(wanted: tx.Transaction, board: Board) -> Digest | None:
    """The job that a transaction is about; None if it is about none that the board shows."""
    job, game = tx.subject_of(wanted)
    return board.games[game].job.id if game in board.games else job
