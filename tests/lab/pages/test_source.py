"""What a hub's store and library feed the pages with: read once, in order, and only where it fits the job."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.lab.pages.staged import Staged, known, moments
from tests.protocol.runs import CHALLENGER, CLIENT, TRAINER, make_job
from tests.protocol.town import FALSE
from tests.tiebreak.node.test_ledger import lived
from tests.waiting import until
from tiebreak.node.hub.store import Row
from tiebreak.node.hub.store import Store as RealStore
from tiebreak.node.pages import source as source_module
from tiebreak.node.pages import views, words
from tiebreak.node.pages.routes import routes
from tiebreak.node.pages.source import PageContext, PageSource
from tiebreak.node.pages.views import PageQuery
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest


def received(post: p.Post, place: int, at: int) -> p.ReceivedPost:
    """A post that a hub took, without signatures."""
    wire = p.SignedPost(post=post, signature=bytes(65)).encode()
    return p.ReceivedPost(place=place, at=at, wire=wire, signature=bytes(65))


class Store:
    def __init__(self, source: Staged | None = None) -> None:
        seen = [] if source is None else [one for told in source.seen.values() for one in told]
        self.rows = [received(one.post, place, one.at) for place, one in enumerate(seen, start=1)]
        self.asked = 0

    def posts(
        self, after: int, *, jobs: Collection[bytes] | None = None, kinds: Collection[int] | None = None,
        newest: bool = False, limit: int = 500, most: int = 1 << 23,
    ) -> Sequence[p.ReceivedPost]:  # fmt: skip
        self.asked += 1
        rows = [(row, p.SignedPost.decode(row.wire).post) for row in self.rows if row.place > after]
        rows = [(row, post) for row, post in rows if jobs is None or post.job_id in jobs]
        found = [row for row, post in rows if kinds is None or post.kind in kinds]
        return found[-limit:] if newest else found[: min(limit, 3)]

    def last_place(self) -> int:
        return self.rows[-1].place if self.rows else 0

    def say(self, body: p.Body, job_id: Digest, sender: Address = CLIENT.address) -> None:
        place = len(self.rows) + 1
        post = p.Post.of(body, job_id=job_id, number=900 + place, sender=sender)
        self.rows.append(received(post, place, place))


class BoardSource:
    def __init__(self, source: Staged) -> None:
        self.board = Board()
        self.source = source
        self.answers = True

    def now(self) -> int:
        return self.source.at

    def poll(self) -> Sequence[object]:
        if not self.answers:
            raise CannotCheck("the node is away")
        self.board.jobs, self.board.games = self.source.board.jobs, self.source.board.games
        return ["changed"]


def on_paper(store: Any, folder: Path) -> PageSource:
    return PageSource(store, PageContext(domain=OFF_CHAIN, blob=lambda root: folder / root.hex(), now=lambda: 7))


def context(source: Staged, folder: Path, board_source: BoardSource | None = None) -> PageContext:
    return PageContext(
        domain=source.domain, blob=lambda root: folder / root.hex(), now=lambda: 7, board_source=board_source, chain="c"
    )


def test_posts_are_read_once_and_jobs_come_newest_first(tmp_path: Path) -> None:
    source = moments()[-1]
    store = Store(source)
    feed = PageSource(store, context(source, tmp_path))
    (job_id,) = source.board.jobs
    assert feed.jobs() == [job_id]
    assert [one.body for one in feed.posts(job_id)] == [one.body for one in source.posts(job_id)]
    assert feed.place() == len(store.rows)
    asked = store.asked
    feed.posts(job_id)
    assert store.asked == asked, "nothing is new"
    store.rows.append(replace(store.rows[-1], place=len(store.rows) + 1))
    assert [one.place for one in feed.posts(job_id)] == list(range(1, len(store.rows) + 1))
    assert feed.now() == 7
    view = known(views.job(feed, job_id))
    assert view["card"]["status"] == "Offered"  # no board is followed
    page = TestClient(Starlette(routes=routes(feed))).get(f"/jobs/{job_id.hex()}").text
    assert page.count("as agreed; no board is followed here") == 2


def test_memory_holds_the_posts_of_few_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's many offers with many posts each: whoever looks at one after another finds all of them."""
    monkeypatch.setattr(source_module, "_FIRST", 1)
    source, store = moments()[-1], Store()
    for place in range(1, 41):
        job = make_job(nonce=place % 8)
        body: p.Body = p.OfferBody(job=job)
        if place > 8:
            body = p.ReplayedBody(count=place, run_root=job.id, agrees=1)
        store.say(body, job.id)
    sizes = [len(row.wire) for row in store.rows[7::8]]
    weight = sum(size + source_module._OVERHEAD for size in sizes) - sizes[1] - source_module._OVERHEAD
    monkeypatch.setattr(source_module, "KEPT_BYTES", 3 * weight - 1)
    feed = PageSource(store, context(source, tmp_path))
    jobs = feed.jobs()
    assert len(jobs) == 8
    monkeypatch.setattr(source_module, "MAX_SEEN_BYTES", sum(sizes) - 1)
    for job_id in (*jobs, *jobs):
        seen = feed.posts(job_id)
        assert [(one.place - 1) // 8 for one in seen] == [0, 2, 3, 4], "the first, and the newest that fit"
        assert {one.post.job_id for one in seen} == {job_id}
    assert len(feed._seen._kept) == 2
    monkeypatch.setattr(source_module, "_KNOWN", 3)
    assert PageSource(store, context(source, tmp_path)).jobs() == jobs[:3], "the newest"


def test_the_last_board_copy_is_shown_while_the_node_is_down(tmp_path: Path) -> None:
    source = moments()[-1]
    board_source = BoardSource(source)
    feed = PageSource(Store(source), context(source, tmp_path, board_source))
    board_source.answers = False
    feed.look()
    board = feed.board
    assert board is None
    board_source.answers = True
    feed.look()
    board_source.answers = False
    feed.look()
    (job_id,) = source.board.jobs
    board = feed.board
    assert board is not None
    assert board.jobs[job_id] is not source.board.jobs[job_id]
    assert next(iter(board.games.values())).job is board.jobs[job_id]
    assert feed.now() == source.at
    view = known(views.job(feed, job_id))
    assert view["card"]["status"] == "Trainer convicted"


def publish(source: Staged, store: Store, folder: Path, name: bytes, data: bytes, root: bytes) -> None:
    (folder / root.hex()).write_bytes(data)
    (job_id,) = source.board.jobs
    body = p.LibraryBody(count=0, logs=0, files=(p.PublishedFile(name=name, size=len(data), root=Digest(root)),))
    store.say(body, job_id, Address(source.board.jobs[job_id].job.client))


def test_only_a_program_with_the_jobs_root_is_used(tmp_path: Path) -> None:
    source = moments()[-1]
    store, (agreed, data) = Store(source), program_of(source)
    feed = PageSource(store, context(source, tmp_path))
    assert feed.program(agreed.id) is None
    publish(source, store, tmp_path, source_module.PROGRAM, b"no program", b"\1" * 32)
    assert feed.place()
    assert feed.program(agreed.id) is None
    publish(source, store, tmp_path, source_module.PROGRAM, data, b"\3" * 32)
    assert feed.place()
    found = feed.program(agreed.id)
    assert found is not None
    assert found.root == agreed.program_root


def program_of(source: Staged) -> tuple[Job, bytes]:
    """The job, and the encoded program."""
    assert source.known is not None
    (public,) = source.board.jobs.values()
    return public.job, source.known.encode()


def offer(store: Store, job: Job, files: Sequence[p.PublishedFile] = ()) -> None:
    """Posts of a client: an offer, and a list of files."""
    for body in (p.OfferBody(job=job), p.LibraryBody(count=0, logs=0, files=tuple(files))):
        store.say(body, job.id)


def test_programs_of_strangers_take_bounded_memory_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight jobs with a program each, and memory for three; then programs with more instructions than are named."""
    source, store, decoded = moments()[-1], Store(), list[int]()
    agreed, data = program_of(source)
    count = agreed.body_count + agreed.state_count
    jobs, decode = [replace(agreed, nonce=nonce) for nonce in range(8)], Program.decode
    for number, job in enumerate(jobs):
        root = Digest(bytes([number]) * 32)
        (tmp_path / root.hex()).write_bytes(data)
        offer(store, job, [p.PublishedFile(name=source_module.PROGRAM, size=len(data), root=root)])
    monkeypatch.setattr(Program, "decode", lambda data: (decoded.append(len(data)), decode(data))[1])
    monkeypatch.setattr(source_module, "KEPT_PROGRAM_BYTES", 3 * (len(data) + source_module._INSTRUCTION * count))
    feed = PageSource(store, context(source, tmp_path))
    assert feed.place()
    for job in jobs:
        found = feed.program(job.id)
        assert found is not None
        assert not {"tree", "encoded"} & vars(found).keys(), "what was made for the root is not kept"
    assert list(feed._programs._kept) == [job.id for job in jobs[-3:]]
    assert len(decoded) == 8
    feed.program(jobs[-1].id)
    assert len(decoded) == 8, "kept"
    monkeypatch.setattr(source_module, "MAX_NAMED", count - 1)
    assert feed.program(jobs[0].id) is None
    assert len(decoded) == 8, "too many instructions: not even looked at"
    assert feed.program(jobs[0].id, names_only=False) is not None, "a board asks for what it needs"


def test_another_jobs_program_is_rejected_by_its_size_without_decoding(tmp_path: Path, monkeypatch: Any) -> None:
    """A stranger names another job's program as its own: its size tells, and the other job keeps it."""
    source, store = moments()[-1], Store()
    agreed, data = program_of(source)
    strangers, root = replace(agreed, nonce=99, body_count=agreed.body_count + 1), Digest(bytes([7]) * 32)
    (tmp_path / root.hex()).write_bytes(data)
    for job in (strangers, agreed):
        offer(store, job, [p.PublishedFile(name=source_module.PROGRAM, size=len(data), root=root)])
    feed = PageSource(store, context(source, tmp_path))
    assert feed.place()
    with monkeypatch.context() as patch:
        patch.setattr(Program, "decode", lambda _: 1 // 0)
        assert feed.program(strangers.id) is None
    assert feed.program(agreed.id) is not None


def stored(folder: Path, bodies: Sequence[p.Body]) -> RealStore:
    """A database with these posts of a client about one job."""
    store, rows = RealStore(f"sqlite+pysqlite:///{folder / 'posts.sqlite'}"), list[Row]()
    store.open_for_writing({})
    for place, body in enumerate(bodies, start=1):
        post = p.Post.of(body, job_id=FALSE.job.id, number=place, sender=CLIENT.address)
        named = {name: getattr(post, name) for name in ("job_id", "game_id", "sender", "kind", "content")}
        wire = received(post, place, place).wire
        rows.append(Row(place=place, at=place, number=place, wire=wire, signature=bytes(65), **named))
    with store.writing() as writer:
        writer.add(rows)
    return store


def test_lists_of_files_push_out_no_other_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint has a list of all files, so lists are most of the bytes; 1 MiB of memory makes the test short."""
    monkeypatch.setattr(source_module, "MAX_SEEN_BYTES", 1 << 20)
    monkeypatch.setattr(source_module, "_FIRST", 1)
    files = [p.PublishedFile(name=b"%04d" % n, size=n, root=Digest(bytes(32))) for n in range(p.MAX_FILES)]
    bodies: list[p.Body] = [p.OfferBody(job=FALSE.job)]
    for count in range(20):
        bodies.append(p.ReplayedBody(count=count, run_root=FALSE.job.id, agrees=1))
        bodies.append(p.LibraryBody(count=count, logs=0, files=tuple(files)))
    store = stored(tmp_path, bodies)
    feed = on_paper(store, tmp_path)
    seen = [one.body for one in feed.posts(FALSE.job.id)]
    assert [one.count for one in seen if isinstance(one, p.ReplayedBody)] == list(range(20))
    lists = [one for one in seen if isinstance(one, p.LibraryBody)]
    assert lists[-1].count == 19
    assert not any(one.files for one in lists)
    store.close()


def test_the_first_page_reads_few_posts_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart: telemetry, which is most of what a hub has, is read for its own job alone, and briefly."""
    count, decoded = 2500, list[bytes]()
    steps = [p.StepsBody(first_step=n, losses=(), millisteps=0, processor=0, memory=0) for n in range(count)]
    store = stored(tmp_path, [p.OfferBody(job=FALSE.job), *steps])
    decode = p.SignedPost.decode
    monkeypatch.setattr(p.SignedPost, "decode", lambda wire: (decoded.append(wire), decode(wire))[1])
    feed = on_paper(store, tmp_path)
    feed.start()
    until(lambda: feed._place == count + 1)  # read before anybody asks for a page
    assert [decode(wire).post.kind for wire in decoded] == [p.PostKind.OFFER]
    (card,) = views.overview(feed, PageQuery())["jobs"]["rows"]
    assert len(decoded) == 1 + source_module._FIRST + source_module.MAX_BRIEF
    assert card["training"]["step"] == 0
    views.overview(feed, PageQuery())
    assert len(decoded) == 1 + source_module._FIRST + source_module.MAX_BRIEF, "what was read is kept"
    seen = feed.posts(FALSE.job.id)
    assert [one.place for one in seen] == list(range(1, count + 2)), "a job's own page has all that stay in memory"
    store.close()


@pytest.mark.parametrize("data", [b"[", b"{}", b'["a", null]', b"[" * 9999, b"\xff"])
def test_malformed_lists_of_source_locations_are_ignored(tmp_path: Path, data: bytes) -> None:
    feed, job = published(tmp_path, source_module.ORIGINS, data)
    assert feed.origins(job.id) == ()


@pytest.mark.parametrize(
    ("data", "name"), [(b"digits\n", "digits"), (b"\xff\xfe", ""), (b"x" * 101, ""), ("ü".encode() * 50, "ü" * 50)]
)
def test_a_published_name_is_text_or_none(tmp_path: Path, data: bytes, name: str) -> None:
    feed, job = published(tmp_path, source_module.TITLE, data)
    assert feed.name(job.id) == name
    assert (feed.offered(job.id), feed.offered(Digest(bytes(32)))) == (job, None)


def published(folder: Path, name: bytes, data: bytes) -> tuple[PageSource, Job]:
    """The pages' source of a job with one published file."""
    source = moments()[-1]
    store = Store(source)
    publish(source, store, folder, name, data, b"\2" * 32)
    feed = PageSource(store, context(source, folder))
    assert feed.place()
    return feed, next(iter(source.board.jobs.values())).job


def test_published_source_locations_name_the_disputed_instruction(tmp_path: Path, cases: Callable[[], None]) -> None:
    source = moments()[-1]
    store, (job_id,) = Store(source), source.board.jobs
    names = [f"block.{n}:addmm (model.py:{n})" for n in range(231)]
    publish(source, store, tmp_path, source_module.ORIGINS, json.dumps(names).encode(), b"\2" * 32)
    board_source = BoardSource(source)
    feed = PageSource(store, context(source, tmp_path, board_source))
    feed.look()
    for game_id, game in source.board.games.items():
        view = known(views.game(feed, game_id))
        stage = view["walk"]["stages"][2]
        assert (stage["path"], stage["line"]) == (f"block.{game.state.leaf}:addmm", f"model.py:{game.state.leaf}")
        cases()
    assert feed.origins(job_id) == names


def test_without_a_chain_the_board_is_computed_from_posts(tmp_path: Path) -> None:
    """A page shows what every party's own ledger says, after each post, and in the end verdict and paper money."""
    run, store = FALSE, Store()
    commune = lived(run)
    feed = on_paper(store, tmp_path)
    statuses, walked, early = [], set(), set[int]()
    for post in commune.export:
        store.rows.append(post)
        (card,) = views.overview(feed, PageQuery())["jobs"]["rows"]
        if card["status"] != "Trainer convicted":
            early |= {row["credit"] for row in views.parties(feed, PageQuery())["rows"]}
        statuses += [card["status"]] if card["status"] not in statuses else []
        walked |= {len(game["walk"]["stages"]) for game in views.overview(feed, PageQuery())["games"]}
    assert statuses == ["Offered", "Signed", "Training", "Trained, may be challenged", "Disputed", "Trainer convicted"]
    assert {1, 2, 3, 4} <= walked
    (game,) = views.overview(feed, PageQuery())["games"]
    assert game["verdict"]["loser"] == "trainer"
    assert game["gas"] == game["other_gas"] == 0
    assert (game["walk"]["trainer"] is None, game["walk"]["challenger"] is None) == (False, False)
    stake = run.job.trainer_stake
    credit = {row["account"]: row["credit"] for row in views.parties(feed, PageQuery())["rows"]}
    accounts = [words.address(key.address) for key in (CLIENT, TRAINER, CHALLENGER)]
    assert [credit[account] for account in accounts] == [0, -stake, stake // 2]
    page = TestClient(Starlette(routes=routes(feed))).get(f"/jobs/{run.job.id.hex()}").text
    assert early == {0}, "what is at stake is not lost"
    assert 'Trainer’s stake <span class="soft">half to the prover, the rest burnt, on paper</span>' in page
    assert words.amount(stake) in page
    assert "withdrawn" not in page
    assert "stakes on a challenge" in page


def test_the_board_is_shown_again_after_a_failed_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    feed = on_paper(store, tmp_path)
    store.rows = list(lived(FALSE).export)
    with monkeypatch.context() as patch:
        patch.setattr(source_module, "snapshot", None)
        with pytest.raises(TypeError):
            feed.place()
    board = feed.board
    assert board is not None
    assert board.jobs.keys() == {FALSE.job.id}


def test_posts_of_a_chain_that_is_not_followed_make_no_board(tmp_path: Path) -> None:
    store = Store()
    store.rows = list(lived(FALSE).export)
    feed = PageSource(store, context(moments()[-1], tmp_path))
    assert not feed.on_paper
    board = feed.board
    assert board is None
    text = TestClient(Starlette(routes=routes(feed))).get("/").text
    assert (text.count("<b>?</b>"), "Unknown: no board" in text, "Everybody who replayed" in text) == (4, True, False)
