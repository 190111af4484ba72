"""Pages at every moment of a simulated game: valid, readable without scripts, safe with hostile text, and true."""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.lab.pages.staged import Staged, known, moments
from tests.tiebreak.strict_html import Strict
from tiebreak.node.pages import views, words
from tiebreak.node.pages.headers import POLICY
from tiebreak.node.pages.routes import CHECKER, STATIC, routes
from tiebreak.node.pages.source import ReadPost
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board, PoolSlot, PublicGame, PublicJob
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e\0" + "very long " * 500


def parsed(page: str) -> Strict:
    """A page whose scripts are the hub's own, and whose links lead to the hub."""
    found = Strict(page)
    for tag, attributes in found.seen:
        assert "style" not in attributes
        assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
        for name in ("href", "src", "action"):
            target = attributes.get(name) or "/"
            assert target.startswith(("/", "#")), target
            assert not target.startswith("//"), target
    return found


def client(source: Staged) -> TestClient:
    return TestClient(Starlette(routes=routes(source)))


def ids(source: Staged) -> tuple[Digest, Digest]:
    return next(iter(source.board.jobs)), next(iter(source.board.games))


def paths(source: Staged) -> list[str]:
    found = ["/", "/games", "/games?q=a&page=2", "/parties"]
    found += [f"/jobs/{job.hex()}" for job in source.board.jobs]
    return found + [f"/games/{game.hex()}" for game in source.board.games]


@pytest.mark.slow
def test_every_page_is_valid_html_with_local_resources_only(cases: Callable[[int], None]) -> None:
    for source in moments():
        asked = client(source)
        for path in paths(source):
            answer = asked.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == POLICY
            page = parsed(answer.text)
            assert "href" not in page.text
            links = {link for _, found in page.seen for link in found.values() if (link or "").startswith("/static/")}
            assert all(asked.get(link).status_code == 200 for link in links)
            cases(1)


def test_the_page_that_checks_files_keeps_its_own_policy() -> None:
    asked = client(final())
    answer = asked.get("/check")
    assert answer.text == CHECKER.read_text("utf-8")
    policy = next(found["content"] for tag, found in Strict(answer.text).seen if "http-equiv" in found)
    assert answer.headers["content-security-policy"] == f"{policy}; frame-ancestors 'none'"
    assert "default-src 'none'" in (policy or "")
    assert asked.post("/check").status_code == 405
    assert 'href="/check"' in asked.get("/").text


def final() -> Staged:
    return moments()[-1]


def test_a_game_page_shows_each_level_of_the_dispute_and_the_claim() -> None:
    source = final()
    _, game_id = ids(source)
    text = " ".join(parsed(client(source).get(f"/games/{game_id.hex()}").text).text.split())
    view = known(views.game(source, game_id))
    state = source.board.games[game_id].state
    assert state.verdict is not None
    assert state.verdict.winner is Side.CHALLENGER
    claimed = int.from_bytes(state.claimed, "little")
    assert view["walk"]["trainer"] is not None
    assert view["walk"]["trainer"]["hexadecimal"] == f"0x{claimed:08x}"
    for expected in (
        "The trainer was wrong", f"0x{claimed:08x}", f"Step {state.step} of 10", f"Instruction {state.leaf} of",
        f"Element {state.element} of", "hidden:addmm", "small_task.py:", "model.hidden.weight", "Terms 32 to 35 of 64",
        f"{source.board.games[game_id].gas:,} gas", "won by the challenger", "20 ether",
    ):  # fmt: skip
        assert expected in text, expected


def game_views() -> Iterator[tuple[PublicGame, Values]]:
    """Each game at each moment, and its view."""
    for source in moments():
        for game in source.board.games.values():
            yield game, known(views.game(source, game.id))


def test_each_move_shows_the_gas_of_its_transaction(cases: Callable[[int], None]) -> None:
    """The gas of the moves and of the challenge is that of the game, at every moment."""
    for game, view in game_views():
        assert [ply["gas"] for ply in view["walk"]["plies"]] == [gas for moves, gas in game.costs if moves]
        assert all(ply["gas"] > 20_000 for ply in view["walk"]["plies"])
        moved = sum(ply["gas"] for ply in view["walk"]["plies"])
        assert view["other_gas"] == game.costs[0][1] == view["gas"] - moved
        cases(1)
    text = client(final()).get(f"/games/{ids(final())[1].hex()}").text
    assert all(f"{ply['gas']:,} gas" in text for ply in view["walk"]["plies"])


def test_the_referees_recomputed_terms_add_up_to_the_shown_sum() -> None:
    source = final()
    view = known(views.game(source, ids(source)[1]))
    found = view["walk"]["computation"]
    assert found is not None
    assert len(found["terms"]) == 4

    def number(text: str) -> float:
        return float(text.replace("−", "-"))

    summed = sum(number(term["result"]) for term in found["terms"]) + number(found["before"])
    assert summed == pytest.approx(number(found["after"]), rel=1e-7)
    for term in found["terms"]:
        first, second = (struct.unpack(">f", bytes.fromhex(f["hexadecimal"][2:]))[0] for f in term["factors"])
        assert number(term["result"]) == pytest.approx(first * second, rel=1e-8)


def test_each_move_of_a_game_narrows_the_shown_range(cases: Callable[[int], None]) -> None:
    before = 0
    for game, view in game_views():
        depth = 0
        for stage in view["walk"]["stages"]:
            whole = (0, stage["total"])
            for cut in (*stage["cuts"], *([stage["found"]] if stage["found"] else [])):
                assert whole[0] <= cut[0] < cut[1] <= whole[1]
                whole = cut
            depth += 1 + len(stage["cuts"]) + (stage["found"] is not None)
            cases(1)
        assert all(stage["found"] for stage in view["walk"]["stages"][:-1])
        assert depth >= before
        assert len(view["walk"]["plies"]) == len(game.moves)
        before = depth
    assert before > 12


def test_clocks_and_turns_are_those_of_the_rules(cases: Callable[[int], None]) -> None:
    for game, view in game_views():
        if game.is_over:
            assert (view["turn"], [side["due"] for side in view["sides"]]) == ("", [None, None])
            continue
        mover, other = view["sides"][:: 1 if game.state.mover is Side.DEFENDER else -1]
        assert view["turn"] == mover["role"]
        assert (mover["due"], other["due"]) == (game.state.deadline, None)
        cases(1)


def test_a_job_shows_what_was_posted_and_what_the_board_says() -> None:
    source = final()
    job_id, _ = ids(source)
    view = known(views.job(source, job_id))
    assert view["card"]["status"] == "Trainer convicted"
    assert [row["count"] for row in view["heads"]] == [1, 2, 3, 4]
    assert view["heads"][1]["contradictions"] == 1
    assert [step for step, _ in view["card"]["training"]["points"]] == list(range(1, 11))
    assert view["card"]["training"]["newest"].millisteps == 2310
    text = " ".join(parsed(client(source).get(f"/jobs/{job_id.hex()}").text).text.split())
    for expected in ("1 found another root", "The trainer signs head 4.", "10 ether", "2 minutes 30 seconds"):
        assert expected in text, expected
    assert "an alarm is a reason to audit, never a verdict" in text


def test_a_job_shows_the_auditor_pool_until_its_seats_are_drawn() -> None:
    board, agreed = Board(), final().board.games[ids(final())[1]].job.job
    job = PublicJob(job=replace(agreed, seats=1, seat_bond=64), last_progress=0)
    assert views.pool_of(board, job) == (0, board.pool_of(job)[1])
    board.pools[64] = [PoolSlot(owner=agreed.client, since=0)] * 10
    assert views.pool_of(board, job) == (10, board.pool_of(job)[1])
    job.seating.seed = job.id
    assert views.pool_of(board, job) is views.pool_of(board, None) is None


def test_implausible_training_telemetry_raises_alarms() -> None:
    """Anything may be in a signed post: losses far apart, a machine that idles, a rest of the job's silence."""
    source = final()
    agreed = source.board.games[ids(source)[1]].job.job
    seen = []

    def say(at: int, first: int, *losses: int, processor: int = 900, sender: Address = agreed.trainer) -> None:
        body = p.StepsBody(first_step=first, losses=losses, millisteps=1, processor=processor, memory=1)
        post = p.Post.of(body, job_id=agreed.id, number=at, sender=sender)
        seen.append(ReadPost(place=at, at=at, post=post, body=body))

    def alarms(now: int, *, is_over: bool = False) -> dict[str, str]:
        rules = views.training_of(seen, agreed, now, is_over=is_over)["rules"]
        return {rule.name: rule.text for rule in rules if rule.standing == "ALARM"}

    assert not alarms(100)
    for at in range(1, 6):
        say(at, at, 0x3F800000)
    assert alarms(186) == {"silence": "nothing for 181 s, expected 180 s at most"}
    assert alarms(1000, is_over=True) == {"losses": f"expected {agreed.steps} losses, got 5"}
    say(6, 8, 0x7FC00000)
    say(7, 2**64 - 1, 0xFFFFFFFF, 0)
    say(8, 6, 0, sender=agreed.client)
    assert alarms(9) == {"losses": "expected 8 losses, got 6"}
    for at in range(9, 30):
        say(at, 8, processor=1000 if at % 5 == 0 else 0)
    assert set(alarms(30)) == {"losses", "utilisation"}


def test_pages_show_jobs_only_offered_and_games_only_opened() -> None:
    source = final()
    job_id, game_id = ids(source)
    game = source.board.games[game_id]
    empty = Staged(domain=source.domain, at=source.at, board=Board(), chain="", on_paper=True)
    text = parsed(client(empty).get("/").text).text
    assert "No run was offered yet" in text
    assert "no chain" in text
    empty.say(p.OfferBody(job=game.job.job), game.job.job.client, job_id, source.at)
    empty.say(p.AnswerBody(job=game.job.job, signature=b""), game.job.job.trainer, job_id, source.at)
    empty.say(p.GameBody(head=game.head, nonce=0), game.challenger, job_id, source.at, game_id)
    asked = client(empty)
    assert "Declined" in asked.get(f"/jobs/{job_id.hex()}").text
    shown = asked.get(f"/games/{game_id.hex()}")
    assert shown.status_code == 200
    assert "2 checkpoints left" in parsed(shown.text).text
    assert parsed(asked.get("/").text)


def test_job_lists_are_paginated_and_read_only_the_jobs_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is read of jobs that a page does not show."""
    source = Staged(domain=final().domain, at=final().at, board=Board())
    agreed = next(iter(final().board.jobs.values())).job
    for nonce in range(120):
        job = replace(agreed, nonce=nonce)
        source.say(p.OfferBody(job=job), job.client, job.id, source.at)
        source.named |= {job.id: f"athlete {nonce}"} if nonce in (3, 99) else {}
    asked, read = client(source), list[Digest]()
    monkeypatch.setattr(source, "posts", lambda job_id, **_: read.append(job_id) or source.seen[job_id])
    for query, jobs in (("", 50), ("?page=2", 50), ("?page=3", 20), ("?page=99", 20), ("?page=-1", 50)):
        for path in ("/", "/live"):
            read.clear()
            text = asked.get(path + query).text
            assert (text.count('href="/jobs/'), len(read)) == (jobs, jobs), query
    assert 'hx-get="/live?page=2&amp;seen=' in asked.get("/?page=2").text
    for query, jobs, shown in (("0x" + agreed.client.hex()[:8], 120, 50), ("ATHLETE", 2, 2), ("none", 0, 0)):
        read.clear()
        text = asked.get("/", params={"q": query}).text
        assert (text.count('href="/jobs/'), len(read)) == (shown, shown), query
        assert f"{jobs} runs with" in text
    assert "among the newest" not in text
    assert 'href="/?q=0x&amp;page=3"' in asked.get("/?q=0x&page=2").text
    assert "page=2" in asked.get("/?q=0x&page=2").text.split('hx-get="')[1].split('"')[0]
    monkeypatch.setattr(views, "MAX_SEARCHED", 60)
    assert "1 run with “athlete” among the newest 60 " in asked.get("/?q=athlete").text
    read.clear()
    assert asked.get("/games/" + "11" * 32).status_code == 404
    assert read == []
    assert asked.get("/parties").status_code == 200
    assert len(read) == 50


def test_pages_show_run_names_and_search_finds_runs_games_and_parties() -> None:
    source = replace(final(), named=dict.fromkeys(final().board.jobs, "digits"))
    job_id, game_id = ids(source)
    asked, game = client(source), source.board.games[game_id]
    assert "<strong>digits</strong>" in asked.get("/").text
    assert f"digits, game {words.short(game_id)}" in asked.get("/games").text
    assert "<h1><span>digits</span> " in asked.get(f"/jobs/{job_id.hex()}").text
    assert ">digits</a></nav>" in asked.get(f"/games/{game_id.hex()}").text
    every = len(source.board.games)
    for text, games in (
        ("Digi", every), (game_id.hex(), 1), (words.short(game_id), 1), ("0x" + game.challenger.hex().upper(), every),
        ("trainer", 0), ("…", every), ("' OR 1=1", 0),
    ):  # fmt: skip
        page = asked.get("/games", params={"q": text}).text
        assert page.count('href="/games/') == games, text
        assert parsed(page)
    party = asked.get("/parties", params={"q": "0x" + game.challenger.hex()}).text
    assert party.count("<tr>") == 2
    assert "Nobody has that." in asked.get("/parties?q=nobody").text
    assert asked.get("/parties?q=client").text.count("<tr>") < asked.get("/parties").text.count("<tr>")


def test_unknown_jobs_and_games_return_404(cases: Callable[[], None]) -> None:
    asked = client(final())
    for path in ("/jobs/zz", "/jobs/" + "0" * 64, "/games/" + "AB" * 32, "/games/x", "/jobs/%00"):
        answer = asked.get(path)
        assert answer.status_code == 404
        assert parsed(answer.text)
        assert asked.get(path + "/live").status_code == 404
        cases()


def test_hostile_text_stays_text_and_short() -> None:
    source = final()
    job_id, game_id = ids(source)
    names = [HOSTILE + f" ({HOSTILE[:40]}.py:3)"] * 500
    hostile = replace(source, known=None, chain=HOSTILE, names=names, named={job_id: HOSTILE})
    for path in [*paths(source), f"/?q={quote(HOSTILE)}", f"/games?q={quote(HOSTILE)}", f"/parties?q={quote(HOSTILE)}"]:
        text = client(hostile).get(path).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "very long " * 20 not in text
        parsed(text)
    assert "&lt;script&gt;alert(1)" in client(hostile).get(f"/games/{game_id.hex()}").text
    assert client(hostile).get(f"/jobs/{job_id.hex()}").status_code == 200


@given(st.text())
def test_clipped_text_is_one_bounded_printable_line(text: str) -> None:
    shown = words.clipped(text)
    assert len(shown) <= words.MAX_TEXT
    assert all(c.isprintable() for c in shown)
    if text.isprintable() and len(text) <= words.MAX_TEXT:
        assert shown == text


@given(st.integers(0, (1 << 32) - 1))
def test_shown_decimals_identify_one_fp32_number(bits: int) -> None:
    shown = words.decimal(DType.F32, bits)
    value = struct.unpack(">f", bits.to_bytes(4, "big"))[0]
    if value != value:
        assert shown == "not a number"
    elif value in (float("inf"), float("-inf")):
        assert shown.endswith("∞")
    else:
        assert struct.pack(">f", float(shown.replace("−", "-"))) == bits.to_bytes(4, "big")


@given(st.integers(-(1 << 130), 1 << 130))
def test_amounts_are_exact_or_say_that_they_are_not(wei: int) -> None:
    shown = words.amount(wei)
    exact = f"{wei:,} wei".replace("-", "−")
    if shown == exact:
        return
    number = shown.removesuffix(" ether").removeprefix("≈ ").replace(",", "").replace("−", "-")
    whole, _, rest = number.partition(".")
    back = (-1 if "-" in whole else 1) * (abs(int(whole)) * 10**18 + int(rest.ljust(18, "0")))
    assert abs(back - wei) < 10**12
    assert (back == wei) == (not shown.startswith("≈"))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 seconds"), (1, "1 second"), (3661, "1 hour 1 minute"), (86400 + 5, "1 day"), (90, "1 minute 30 seconds")],
)
def test_durations_are_shown_in_their_two_largest_units(seconds: int, shown: str) -> None:
    assert words.duration(seconds) == shown


# ---------------------------------------------------------------- what is live


def seen_of(page: str) -> str:
    found = re.search(r'hx-get="([^"]*)"', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


def test_live_parts_come_only_if_they_changed() -> None:
    stages = [source for source in moments() if source.board.games]
    first, later = stages[0], stages[1]
    _, game_id = ids(first)
    page = client(first).get(f"/games/{game_id.hex()}").text
    assert client(first).get(seen_of(page)).status_code == 204
    later_on = client(replace(first, at=first.at + 7))
    assert later_on.get(seen_of(page)).status_code == 204, "clocks count down by themselves"
    answer = client(later).get(seen_of(page))
    assert answer.status_code == 200
    changed = re.findall(r'hx-swap-oob="innerHTML:#(\w+)"', answer.text)
    assert changed == ["live_sides", "live_moves"]  # nodes were shown, and nothing was chosen yet
    parsed(answer.text)
    assert client(later).get(seen_of(answer.text)).status_code == 204


def test_every_live_block_has_an_element_with_its_id(cases: Callable[[int], None]) -> None:
    folder = Path(views.__file__).with_name("templates")
    for path in folder.glob("*.html"):
        text = path.read_text()
        for name in re.findall(r"{% block (live_\w+) %}", text):
            assert f'id="{name}"' in text
            cases(1)


# ---------------------------------------------------------------- colours


def colours() -> list[dict[str, str]]:
    css = (STATIC / "page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    return [dict(re.findall(r"--(\w+): (#\w{6});", rule)) for rule in (light, dark)]


def luminance(colour: str) -> float:
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_of_text_is_at_least_that_of_wcag_aa(cases: Callable[[int], None]) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for scheme in colours():
        for text in ("ink", "soft", "accent", "good"):
            for ground in ("ground", "raised", "wash", "faint"):
                assert contrast(scheme[text], scheme[ground]) >= 4.5, (text, ground, scheme)
                cases(1)
        assert contrast(scheme["ground"], scheme["ink"]) >= 7
        assert contrast(scheme["accent"], scheme["rest"]) >= 3
        assert contrast(scheme["accent"], scheme["agreed"]) >= 1.5
