"""The report shows every number, loads nothing, lets no text out of its place, and says so when something is wrong."""

import dataclasses
import html
import json
import math
import re
from hashlib import sha256
from pathlib import Path

import pytest

from tests.tiebreak.strict_html import Strict
from tiebreak.lab.demo import report, results


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def job(name: str, steps: int, interval: int, start: float, end: float) -> results.JobResult:
    losses = tuple(end + (start - end) * math.exp(-4 * s / steps) * (1 + 0.1 * math.sin(s)) for s in range(steps))
    return results.JobResult(
        name=name, summary="conv-bn-relu-pool twice, dropout, linear", parameters=4282, bodies=431, states=19,
        steps=steps, checkpoint_interval=interval, program_root=digest(name + "p"),
        initial_state_root=digest(name + "i"), data_root=digest(name + "d"), job_id=digest(name + "j"),
        run_root=digest(name + "r"), losses=losses, metric="test accuracy", metric_before=0.0861, metric_after=0.9306,
        seconds=7.5, plain_seconds=0.5,
        rounding=(
            results.RoundingCount(kind="reduce sum", elements=8_123_456, undecided=1234, integers=3, fp64_differs=2),
            results.RoundingCount(kind="map exp", elements=92_160, undecided=0, integers=0, fp64_differs=0),
        ),
    )  # fmt: skip


WALK = (
    results.WalkStep(tree="run", height=3, levels=3, index=2, position=2, note="checkpoint 3: steps 25 to 36"),
    results.WalkStep(tree="steps", height=4, levels=4, index=5, position=5, note="step 30"),
    results.WalkStep(tree="values", height=10, levels=4, index=1, position=1),
    results.WalkStep(tree="values", height=6, levels=4, index=9, position=25),
    results.WalkStep(tree="values", height=2, levels=2, index=3, position=103, note="instruction 103"),
    results.WalkStep(tree="chunks", height=2, levels=2, index=0, position=0, note="chunk 0"),
    results.WalkStep(tree="terms", height=5, levels=4, index=15, position=15),
    results.WalkStep(tree="terms", height=1, levels=1, index=0, position=30, note="terms 120 to 123"),
)


def dispute(title: str, tampered: str, *, honest_trainer: bool = False, on_chain: bool = True) -> results.DisputeResult:
    loser = results.Loser.CHALLENGER if honest_trainer else results.Loser.TRAINER
    kinds = (("descend", "defender"), ("select", "challenger"), ("prove", "challenger"))
    moves = tuple(
        results.Move(kind=kind, by=by, bytes=300 + 40 * i, gas=60_000 + 3_000 * i if on_chain else None)
        for i in range(21)
        for kind, by in [kinds[i % 3]]
    )
    return results.DisputeResult(
        title=title, tampered=tampered, honest_trainer=honest_trainer, job="digits", step=30, instruction=103,
        operation="reduce sum", origin="head / aten.mm", element=7, committed="0x3f800001", correct="0x3f800000",
        python=loser, contract=loser if on_chain else None, trainer_delta=0 if honest_trainer else -1_000_000,
        challenger_delta=-500_000 if honest_trainer else 1_000_000, seconds=1.5, moves=moves, walk=WALK,
    )  # fmt: skip


def result() -> results.DemoResult:
    jobs = (job("digits", 72, 12, 2.5, 0.1), job("text", 40, 8, 5.5, 2.9))
    return results.DemoResult(
        environment=(("CPU", "made up, 2 cores"), ("torch", "0.0")),
        jobs=jobs,
        audits=(
            results.AuditResult(
                job="digits",
                settings=(results.Setting(name="threads", trainer="2", auditor="1"),),
                trainer_root=jobs[0].run_root,
                auditor_root=jobs[0].run_root,
                seconds=8.1,
            ),
        ),
        plain=tuple(
            results.PlainResult(job="digits", settings=f"{n} threads", state_sha256=digest(str(n)), final_loss=0.25)
            for n in (1, 2)
        ),
        disputes=(
            dispute("Poisoned label", "one label of the batch of step 30: 3 became 5"),
            dispute("Learning rate", "learning rate of step 11: 0.05 became 0.06"),
            dispute("Flipped bit", "lowest bit of one weight in checkpoint 4"),
            dispute("False challenge", "nothing: the challenger lies", honest_trainer=True, on_chain=False),
        ),
        seconds=93.4,
    )


HOSTILE = '<script>alert(1)</script>|`"\n'


def test_html_is_well_nested_and_shows_the_numbers() -> None:
    page = Strict(report.to_html(result()))
    for expected in ("8,123,456", "1,890,000", "0x3f800001", "head / aten.mm", "0.9306", "instruction 103", "14,700"):
        assert expected in page.text
    assert page.text.count("trainer loses") >= 6
    assert page.text.count("challenger loses") == 2
    pictures = [attributes for tag, attributes in page.seen if tag == "svg"]
    assert len(pictures) == 2 + 4  # losses, walks
    assert all(drawn["aria-label"] and drawn["viewbox"] and "width" not in drawn for drawn in pictures)
    bars = [a for tag, a in page.seen if tag == "i" and (a.get("class") or "").startswith("by-")]
    assert len(bars) - 2 == sum(m.gas is not None for d in result().disputes for m in d.moves)


def test_html_loads_nothing() -> None:
    page = Strict(report.to_html(result()))
    for tag, attributes in page.seen:
        assert tag not in ("script", "link", "iframe", "object", "img", "base"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert value is not None
                assert value.startswith("#"), (tag, name, value)
    source = report.to_html(result())
    assert re.findall(r"url\((?!#)|@import", source) == []
    assert "default-src 'none'" in source


def hostile(found: results.DisputeResult) -> results.DisputeResult:
    walk = tuple(dataclasses.replace(step, tree=HOSTILE, note=HOSTILE) for step in found.walk)
    return dataclasses.replace(found, title=HOSTILE, tampered=HOSTILE, origin=HOSTILE, walk=walk)


def test_hostile_text_cannot_break_html_or_markdown() -> None:
    base = result()
    bad = dataclasses.replace(
        base, environment=((HOSTILE, HOSTILE),), disputes=tuple(hostile(found) for found in base.disputes)
    )
    page = Strict(report.to_html(bad))
    assert "script" not in {tag for tag, _ in page.seen}
    assert "alert(1)" in page.text
    tables = report.to_markdown(bad).split("## Disputes")[1].split("## Environment")[0].strip().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {11}


def test_the_tree_picture_draws_the_selected_nodes() -> None:
    made = dispute("t", "x")
    svg = report.walk(made)
    assert svg.count('class="w-chosen"') == made.rounds == 8
    assert svg.count('class="w-agreed"') == sum(step.index for step in made.walk)
    assert svg.count("<rect") == sum(1 << step.levels for step in made.walk)
    assert svg.count('class="w-tree"') == 5


def test_json_round_trips_and_carries_the_derived_numbers() -> None:
    document = json.loads(result().to_json())
    assert document["format"] == 1
    assert document["succeeded"] is True
    assert document["audits"][0]["equal"] is True
    first, last = document["disputes"][0], document["disputes"][-1]
    assert (first["rounds"], first["messages"], first["gas"]) == (8, 21, sum(m["gas"] for m in first["moves"]))
    assert first["bytes"] == sum(m["bytes"] for m in first["moves"])
    assert last["gas"] is None
    assert last["python"] == "challenger"
    assert document["jobs"][1]["losses"] == list(result().jobs[1].losses)
    job = dataclasses.replace(result().jobs[0], metric_after=math.nan)
    with pytest.raises(ValueError, match="JSON"):
        dataclasses.replace(result(), jobs=(job,)).to_json()


def with_dispute(**changes: object) -> results.DemoResult:
    base = result()
    return dataclasses.replace(base, disputes=(dataclasses.replace(base.disputes[0], **changes),))  # type: ignore[arg-type]


def test_success_needs_every_referee_and_every_audit() -> None:
    assert result().succeeded
    assert not with_dispute(python=results.Loser.CHALLENGER).succeeded
    assert not with_dispute(contract=results.Loser.CHALLENGER).succeeded
    assert not with_dispute(honest_trainer=True).succeeded
    audit = dataclasses.replace(result().audits[0], auditor_root="00")
    failed = dataclasses.replace(result(), audits=(audit,))
    assert not failed.succeeded
    assert "ANOTHER RUN ROOT" in report.to_markdown(failed)
    assert "NOT AS IT SHOULD BE" in report.to_markdown(failed)
    assert "Not as it should be" in html.unescape(report.to_html(failed))


def test_equal_plain_runs_are_not_reported_as_divergent() -> None:
    base = result()
    assert base.plain_forked == ("digits",)
    same = dataclasses.replace(base, plain=(base.plain[0], base.plain[0]))
    assert same.plain_forked == ()
    assert "No divergence on this machine" in report.to_html(same)


def test_write_creates_html_markdown_and_json_reports(tmp_path: Path) -> None:
    paths = report.write(result(), tmp_path / "a" / "b")
    assert sorted(paths) == ["report.html", "report.md", "result.json"]
    assert json.loads(paths["result.json"].read_text())["seconds"] == 93.4
    assert paths["report.md"].read_text().count("| digits |") >= 3
    assert [report.share(*parts) for parts in ((0, 10), (0, 0), (1, 1000))] == ["0", "0", "1.0e-03"]
