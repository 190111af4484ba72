"""Parties without a chain: what they post, a hub receipts, and anybody judges."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain.support import STRANGER
from tests.parts import slow_except
from tests.protocol.runs import CHALLENGER, CLIENT, TRAINER, Run
from tests.protocol.town import FALSE, TALKED_FALSE, TALKED_TRUTH, TRUTH
from tests.tiebreak.node.village import BLOCK, HUB, START, Village, Villager
from tests.tiebreak.parties import Commands
from tiebreak.api.chain import boards
from tiebreak.api.disputing import judging
from tiebreak.node.board_source import HubSource
from tiebreak.node.hub_client import VerifiedPost
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.commitments.keys import SIGNATURE_BYTES, PrivateKey
from tiebreak.protocol.errors import StateError, TiebreakError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Concede, Side
from tiebreak.protocol.game.sides import Defender, choose
from tiebreak.protocol.game.snapshot import SignedStanding, Standing
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import ledger, posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.protocol.parties.ledger import Ledger
from tiebreak.protocol.parties.terms import Pace
from tiebreak.protocol.tags import Digest


def test_moves_for_unopened_games_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_EARLY_BYTES", 10 * 128)
    made = Ledger(OFF_CHAIN)
    games = [Digest(n.to_bytes(32, "big")) for n in range(30)]
    for game in games:
        made.hear(game, b"")
    assert list(made._early) == games[-10:]
    made.hear(games[0], bytes(200))
    assert list(made._early) == [*games[-7:], games[0]]


class Member(Villager):
    """A villager whose ground is the hub's ledger."""

    village: "Commune"

    def __init__(self, village: "Commune", name: str) -> None:
        self.alarms: list[e.Alarm] = []
        super().__init__(village, name)

    def new_ground(self, pace: Pace) -> HubSource:
        account = None if self.key is None else self.key.address
        post = lambda job, body, tag: self.post(job, body, tag=tag)  # noqa: E731
        return HubSource(OFF_CHAIN, account, post, pace=pace, steady=self.steady)

    def step(self) -> None:
        self.board_source.note_time(self.village.now)
        super().step()

    def raise_alarm(self, alarm: e.Alarm) -> None:
        self.alarms.append(alarm)

    def receive(self, verified: VerifiedPost) -> None:
        self.board_source.hear(verified.place, verified.at, verified.post, verified.body)
        super().receive(verified)


class Commune(Village):
    """A village with a hub in place of a chain."""

    KIND = Member

    def __init__(self, run: Run) -> None:
        super().__init__(None, run)

    @property
    def export(self) -> list[posts.ReceivedPost]:
        return [verified.received for verified in self.verified_posts]

    def disturb(self) -> None:
        """Called before each round of all; strangers do what they do here."""

    def live(self) -> None:
        for _ in range(600):
            self.seconds += BLOCK
            self.disturb()
            for villager in self.villagers.values():
                villager.step()
            board = self.villagers["client"].board_source.board
            if board.jobs and all(job.is_over for job in board.jobs.values()):
                return
        raise AssertionError("expected an end, got none")


class Flooded(Commune):
    """A commune in which throw-away keys challenge whatever head there is, hold their games open, and then concede."""

    def __init__(self, run: Run, *, named: tuple[Address, ...], keys: int = 20, rng: Random | None = None) -> None:
        """rng: they challenge and concede at any time, and not all at once and at the end."""
        super().__init__(run)
        self.named, self.keys, self.rng = named, [PrivateKey.from_int(50_000 + n) for n in range(keys)], rng
        self.number = 0

    def said(self, key: PrivateKey, wanted: tx.Transaction) -> None:
        self.number += 1
        body = posts.TransactionBody(transaction=wanted)
        post = posts.Post.of(body, job_id=self.run.job.id, number=self.number, sender=key.address)
        self.deliver(posts.SignedPost.sign(post, OFF_CHAIN, key), OFF_CHAIN)

    def disturb(self) -> None:
        client = self.villagers["client"]
        job = client.board_source.board.jobs.get(self.run.job.id)
        if job is None or job.is_over:
            return
        if self.named:
            client.post(job.id, posts.AuditorsBody(accounts=self.named))
        own = {key.address: key for key in self.keys}
        heads = [body.head for verified in self.verified_posts if isinstance(body := verified.body, posts.HeadBody)]
        rng, is_over = self.rng, self.now > job.window_end
        if heads and job.head_count and (rng.random() < 0.3 if rng else not self.number):
            head = rng.choice(heads) if rng else heads[-1]
            for nonce in range(2):
                for key in rng.sample(self.keys, rng.randint(1, 5)) if rng else self.keys:
                    self.said(key, tx.Challenge(head=head, nonce=nonce))
        for game in client.board_source.board.open_games(job.id):
            if game.challenger in own and (is_over or (rng and rng.random() < 0.05)):
                self.said(own[game.challenger], tx.MakeMove(game_id=game.id, sequence=0, move=Concede()))


@cache
def lived(run: Run) -> Commune:
    """A commune in which this run was offered, until its job ended. Read only."""
    made = Commune(run)
    made.live()
    return made


Judge = Callable[..., Any]


@pytest.fixture
def judge(tmp_path: Path, command: Commands) -> Judge:
    """The command, over an export: what it prints, or its complaint."""

    def judged(
        export: list[posts.ReceivedPost], *options: str, whole: list[posts.ReceivedPost] | None = None, code: int = 0
    ) -> Any:
        files = [tmp_path / "posts", tmp_path / "end"]
        files[0].write_bytes(pack([entry.pack() for entry in export]))
        files[1].write_bytes(pack(end_of(export if whole is None else whole).pack()))
        hub = options or ("--hub-key", f"0x{HUB.address.hex()}")
        out, err = command.printed("judge", *files[: 2 if whole != [] else 1], *hub, "--json", code=code)
        return err if code == 2 else json.loads(out)

    return judged


def end_of(export: list[posts.ReceivedPost]) -> posts.Complete:
    """The hub's word that these are all."""
    received = [
        posts.Received(content=posts.SignedPost.decode(entry.wire).post.content, place=entry.place, at=entry.at)
        for entry in export
    ]
    job_id = posts.SignedPost.decode(export[0].wire).post.job_id if export else TRUTH.job.id
    digest, at = posts.Complete.hash_of(received), export[-1].at if export else START
    made = posts.Complete(job_id=job_id, posts=digest, at=at, signature=bytes(SIGNATURE_BYTES))
    return replace(made, signature=HUB.sign(made.digest(OFF_CHAIN)))


NAMED = (Address(CHALLENGER.address),)


@pytest.mark.parametrize("run", [FALSE, TALKED_FALSE], ids=["by posted moves", "in talk"])
def test_throwaway_keys_do_not_block_a_named_auditor(run: Run, judge: Judge) -> None:
    commune = Flooded(run, named=NAMED)
    commune.live()
    board = commune.villagers["trainer"].board_source.board
    won = [game for game in board.games.values() if game.challenger == CHALLENGER.address]
    assert [game.state.verdict.winner for game in won] == [Side.CHALLENGER]  # type: ignore[union-attr]
    assert len(board.games) == 1 + ledger.MAX_STRANGERS
    found = judge(commune.export)
    assert [one["status"] for one in found["jobs"]] == ["slashed"]
    thrown = {f"0x{key.address.hex()}" for key in commune.keys}
    assert set(found["debts"]) - thrown == {f"0x{TRAINER.address.hex()}"}, "they owe stakes if they gave up before"
    assert found["refused"]["TooManyGames"] == 2 * len(commune.keys) - ledger.MAX_STRANGERS


RUNS = {"lie": FALSE, "lie, talk": TALKED_FALSE, "truth": TRUTH, "truth, talk": TALKED_TRUTH}


@pytest.mark.parametrize("name", slow_except(RUNS, "lie, talk", "truth"))
def test_throwaway_keys_change_no_outcome_whenever_they_appear(name: str, cases: Callable[[], None]) -> None:
    for seed in range(4):
        commune = Flooded(RUNS[name], named=NAMED, rng=Random(seed))
        commune.live()
        for villager in commune.villagers.values():
            (job,) = villager.board_source.board.jobs.values()
            assert job.status is (JobStatus.SLASHED if "lie" in name else JobStatus.SETTLED), seed
            assert len(villager.board_source.board.games) <= ledger.MAX_STRANGERS + 1
        assert commune.number > 10
        cases()


def test_an_auditor_whom_nobody_named_says_that_it_is_shut_out() -> None:
    """Strangers share what there is, first come, first served. What helps is to be named, and its owner hears that."""
    commune = Flooded(FALSE, named=())
    commune.live()
    (job,) = commune.villagers["client"].board_source.board.jobs.values()
    assert job.status is JobStatus.SETTLED
    alarms = [event for event in commune.villagers["auditor"].alarms if event.is_error]
    assert any("its client can name this account" in alarm.text for alarm in alarms)


@pytest.mark.parametrize("run", [TRUTH, TALKED_TRUTH], ids=["by posted moves", "in talk"])
def test_throwaway_keys_delay_an_honest_trainer_only_for_a_bounded_time(run: Run, judge: Judge) -> None:
    commune = Flooded(run, named=NAMED)
    commune.live()
    board = commune.villagers["trainer"].board_source.board
    (job,) = board.jobs.values()
    assert job.status is JobStatus.SETTLED
    assert len(board.games) == ledger.MAX_STRANGERS
    assert all(game.state.verdict.winner is Side.DEFENDER for game in board.games.values())  # type: ignore[union-attr]
    assert job.ended is not None
    assert job.ended <= job.window_end + run.job.lone_game_seconds + 6 * run.job.replay_time * ledger.MAX_STRANGERS
    found = judge(commune.export)
    assert f"0x{TRAINER.address.hex()}" in found["claims"]
    thrown = {f"0x{key.address.hex()}" for key in commune.keys}
    assert set(found["debts"]) <= thrown | {f"0x{CLIENT.address.hex()}"}


def test_hub_ledger_lists_jobs_and_games_like_a_chain() -> None:
    """Each job and each game has the lines and the document that `tiebreak chain jobs` and `games` show."""
    commune = lived(TALKED_FALSE)
    entries = [(one.place, one.at, one.post, one.body) for one in commune.verified_posts]
    board, job = boards.HubBoard(entries, OFF_CHAIN), commune.run.job
    (row,) = boards.jobs(board)
    assert (row["job"], row["status"], row["open_games"]) == (job.id.hex(), "slashed", 0)
    assert row["client"] == f"0x{CLIENT.address.hex()}"
    (game,) = boards.games(board, job_id=job.id)
    assert (game["verdict"], game["level"], game["job"]) == ("defender_lost", None, job.id.hex())
    assert not list(boards.games(board, first_block=game["block"] + 1))
    shown = boards.game_document(board, Digest(bytes.fromhex(game["game"])))
    assert [event["event"] for event in shown["events"]] == ["GameStarted", "GameEnded"]
    assert (shown["phase"], shown["reason"]) == ("over", game["reason"])
    for missing in (boards.job_document, boards.game_document):
        with pytest.raises(StateError, match="on the board, got none"):
            missing(board, Digest(bytes(32)))

    accepted = next(n for n, entry in enumerate(entries) if "AcceptJob" in repr(entry[3]))
    begun = boards.HubBoard(entries[: accepted + 1], OFF_CHAIN)
    found = boards.job_document(begun, job.id)
    assert (found["status"], found["head_count"], found["reward"]) == ("active", 0, job.reward)
    assert found["next_head_due"] == found["accepted"] + job.challenge_window
    json.dumps([found, shown, row, game])


def test_seats_are_refused_without_a_chain() -> None:
    """Nobody could draw them: the client does not offer such a job, and no trainer signs it."""
    seated = replace(TRUTH.job, seats=2, seat_fee=1, seat_bond=1)
    alarms = []
    for name, event in (("client", e.JobDrafted(at=0, job=seated)), ("trainer", e.JobOffered(at=0, job=seated))):
        machine = Commune(TRUTH).villagers[name].machine
        actions = machine.observe(event)
        alarms += [action.text for action in actions if isinstance(action, e.Alarm)]
        assert not any(isinstance(action, e.OfferJob) for action in actions)
        assert not any(isinstance(action, e.SignJob) and action.signature for action in actions)
        assert not machine.records
    assert [text.split(": ", 1)[1] for text in alarms if "no chain" in text] == [
        "not offered: expected a job without seats, because there is no chain to draw them, got one with 2",
        "not signed: expected a job without seats, because there is no chain to draw them, got one with 2",
    ]


@pytest.mark.slow
def test_an_unfinished_job_yields_no_debts_or_claims(judge: Judge) -> None:
    """The hub's own word of any instant before the conviction, which the trainer may hand over, is no last word."""
    export = lived(FALSE).export
    statuses, last = [], len(export)
    while judging.judge(export[:last], [end_of(export[:last])], OFF_CHAIN, HUB.address, now=0)["complete"]:
        last -= 1
    for posted in range(1, last + 1):
        end = end_of(export[:posted])
        for age, old in ((judging.MAX_END_AGE, False), (judging.MAX_END_AGE + 1, True)):
            found = judging.judge(export[:posted], [end], OFF_CHAIN, HUB.address, now=end.at + age)
            (problem,) = found["problems"]
            assert "expected one that has ended" in problem
            assert (f"{age} seconds ago" in problem) == old
            assert not {"claims", "debts"} & found.keys()
        statuses += [job["status"] for job in found["jobs"]] or ["none"]
    assert set(statuses) == {"none", "offered", "active"}
    second = judge(export[:last], code=3)
    assert [job["status"] for job in second["jobs"]] == ["active"]
    assert "expected one that has ended, got one that was active" in second["problems"][0]
    whole, years = end_of(export), 10**9
    assert judging.judge(export, [whole], OFF_CHAIN, HUB.address, now=whole.at + years)["debts"], "it stays convicted"


def signed_by(key: PrivateKey, body: posts.Body, number: int, game: Digest | None = None) -> bytes:
    post = posts.Post.of(body, job_id=FALSE.job.id, number=number, sender=key.address, game_id=game)
    return posts.SignedPost.sign(post, OFF_CHAIN, key).encode()


def test_no_post_can_hide_a_debt_from_the_judge(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The convicted trainer walks a game of its own into padding, and signs a receipt for the state after it."""
    run, commune = FALSE, lived(FALSE)
    export = commune.export
    truth = judge(export)
    head = run.head()
    game = game_id(head.head, OFF_CHAIN, STRANGER.address, 0)
    head = replace(head, signature=TRAINER.sign(head.head.digest(OFF_CHAIN)))
    talk = Transcript(rules.start(run.job, head.head, game, 0), domain=OFF_CHAIN, challenger=STRANGER.address)
    keys, wires = {Side.DEFENDER: TRAINER, Side.CHALLENGER: STRANGER}, []
    while not talk.is_closed:
        state, shown = talk.state, talk.line[-1] if talk.line else None
        nodes = getattr(shown, "nodes", ())
        move = choose(nodes, len(nodes) - 1) if state.mover is Side.CHALLENGER else Defender(run).move(state, shown)
        wires.append(talk.sign(move, keys[state.mover]))
        talk.append(wires[-1])
    over = Standing(game_id=game, sequence=talk.state.moves, snapshot=Digest(bytes(32)))
    receipt = SignedStanding.under(over, TRAINER.sign(over.digest(OFF_CHAIN))).encode()
    wanted: list[tuple[PrivateKey, posts.Body, Digest | None]] = [
        (STRANGER, posts.TransactionBody(transaction=tx.Challenge(head=head, nonce=0)), None),
        *((TRAINER, posts.MoveBody(wire=wire), game) for wire in wires),
        (TRAINER, posts.ReceiptBody(receipt=receipt), game),
    ]
    posted = next(n for n, entry in enumerate(export) if "Challenge(" in repr(read(entry)))
    made = [signed_by(key, body, 500 + n, about) for n, (key, body, about) in enumerate(wanted)]
    mixed = [(entry.wire, entry.at) for entry in export[:posted]]
    mixed += [(wire, export[posted].at) for wire in made] + [(entry.wire, entry.at) for entry in export[posted:]]
    attacked = [placed(export[0], wire, place, at) for place, (wire, at) in enumerate(mixed, start=1)]
    found = judge(attacked)
    # The open game of the trainer's own key costs the prover its relief. What the trainer owes is the same.
    assert (found["debts"], found["complete"]) == (truth["debts"], True)

    wire = signed_by(STRANGER, posts.ReplayedBody(count=1, run_root=Digest(bytes(32)), agrees=1), 900)
    strange = placed(export[0], wire, len(export) + 1, export[-1].at)
    real = Ledger.read

    def fail(self: Ledger, post: posts.Post, body: posts.Body, at: int) -> None:
        if isinstance(body, posts.ReplayedBody):
            raise ZeroDivisionError
        real(self, post, body, at)

    monkeypatch.setattr(Ledger, "read", fail)
    found = judge([*export, strange], code=3)
    assert found["problems"] == [f"place {strange.place}: ZeroDivisionError()"]
    assert (found["jobs"], found["games"]) == (truth["jobs"], truth["games"]), "and all others are judged"


def placed(entry: posts.ReceivedPost, wire: bytes, place: int, at: int, hub: PrivateKey = HUB) -> posts.ReceivedPost:
    """An entry with another post, as a hub signs for it."""
    content = posts.SignedPost.decode(wire).post.content
    signature = hub.sign(posts.Received(content=content, place=place, at=at).digest(OFF_CHAIN))
    return replace(entry, wire=wire, place=place, at=at, signature=signature)


def test_truncated_or_extended_transcripts_are_rejected(judge: Judge) -> None:
    """The convicted trainer posts that it settles, and hands over what was posted without challenge, moves, ending."""
    job, export = FALSE.job, lived(FALSE).export
    settle = posts.TransactionBody(transaction=tx.Settle(job_id=job.id))
    late = posts.Post.of(settle, job_id=job.id, number=1 << 20, sender=TRAINER.address)
    wire = posts.SignedPost.sign(late, OFF_CHAIN, TRAINER).encode()
    place, at = export[-1].place + 1, export[-1].at + job.challenge_window + 1
    whole = [*export, placed(export[0], wire, place, at)]
    found = judge(whole)
    assert [one["status"] for one in found["jobs"]] == ["slashed"]
    own = ("CreateJob", "AcceptJob", "PostHead", "Settle")
    cut = [entry for entry in whole if any(f"{name}(" in repr(read(entry)) for name in own)]
    for end, said in ((whole, "expected the posts that the hub had at"), ([], "expected the hub's word on its end")):
        found = judge(cut, whole=end, code=3)
        assert [one["status"] for one in found["jobs"]] == ["settled"], "which is what it would have believed"
        assert said in found["problems"][0]
        assert not {"claims", "debts"} & found.keys()
    assert judge(whole, whole=export, code=3)["problems"], "what came after the hub's word is not under it"

    challenge = next(n for n, entry in enumerate(whole) if "Challenge(" in repr(read(entry)))
    signed = posts.SignedPost.decode(whole[challenge].wire)
    unsigned = replace(signed, signature=TRAINER.sign(bytes(32))).encode()
    broken = [*whole[:challenge], replace(whole[challenge], wire=unsigned), *whole[challenge + 1 :]]
    assert f"place {whole[challenge].place}: " in judge(broken, code=3)["problems"][0]

    backdated = placed(export[0], export[0].wire, 1, START * 2)
    assert "instant" in judge([backdated, *export[1:]], code=2)
    doubled = [*whole, placed(export[0], export[1].wire, place + 1, at)]
    assert "expected one post of a sender and a number" in judge(doubled, code=2)
    theirs = [placed(entry, entry.wire, entry.place, entry.at, TRAINER) for entry in cut]
    judge(theirs, code=2)
    judge([*export[:2], *theirs[2:]], code=2)
    assert "(--hub)" in judge(export, "--chain-id", "0", code=3)["problems"][0]


@settings(max_examples=20)
@given(st.data())
def test_no_change_of_a_transcript_changes_what_is_owed(data: st.DataObject) -> None:
    """Whatever is left out, doubled, moved or damaged: it is refused or incomplete, or the judgement is the same."""
    export = list(lived(FALSE).export)
    end, hub = end_of(export), Address(HUB.address)
    truth = judging.judge(export, [end], OFF_CHAIN, hub, now=end.at)
    assert truth["complete"]
    assert truth["debts"]
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = (data.draw(st.integers(0, len(export) - 1)) for _ in range(2))
        entry, place = export[at], export[other].place
        match data.draw(st.sampled_from(["drop", "double", "place", "post", "wire", "signature", "at"])):
            case "drop":
                del export[at]
            case "double":
                export.append(replace(entry, place=export[-1].place + 1))
            case "place":
                export[at], export[other] = replace(export[other], place=entry.place), replace(entry, place=place)
            case "post":
                export[at] = replace(entry, wire=export[other].wire)
            case "at":
                export[at] = replace(entry, at=entry.at + data.draw(st.integers(-BLOCK, BLOCK)))
            case field:
                raw = bytearray(getattr(entry, field))
                raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                export[at] = replace(entry, **{field: bytes(raw)})
        if not export:
            return
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("posts", "end")]
        files[0].write_bytes(pack([entry.pack() for entry in export]))
        files[1].write_bytes(pack(end.pack()))
        with suppress(TiebreakError):
            found = judging.judge(*judging.read_transcripts(files), OFF_CHAIN, hub, now=end.at)
            assert found == truth or (not found["complete"] and not {"claims", "debts"} & found.keys())


def read(entry: posts.ReceivedPost) -> posts.Body:
    return posts.SignedPost.decode(entry.wire).verify(OFF_CHAIN)
