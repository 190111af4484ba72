"""Figures are read strictly, gas is what was measured, and the recommended terms do what they promise."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from benchmarks.figures import MEASURED, collect
from tests.parts import slow_except
from tiebreak.lab.incentives.figures import FIGURES, PRESETS, Figures, load
from tiebreak.lab.incentives.findings import agree_options, document, find, tables
from tiebreak.lab.incentives.measured import WORST, measured, sides
from tiebreak.lab.incentives.model import conditions, disbelief, honesty, stuffing
from tiebreak.lab.incentives.recommend import least_stake, margins, recommend, times
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.terms import HELD_RUNS, PATIENCE

NEEDED = {"steps": 1000, "seconds_per_step": Decimal("1.5"), "machine_hour": 2, "lie_value": 10, "harm": 10}


@pytest.fixture(scope="module")
def gas() -> dict[str, int]:
    return measured(5)


def small() -> Figures:
    return Figures.of(NEEDED | {"steps": 100_000, "lie_value": 100})


def test_figures_are_read_exactly_from_toml_and_json(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("steps = 1000\nseconds_per_step = 0.1\nmachine_hour = 2.5\nlie_value = 10\nharm = 1e1\n")
    found = load(path)
    assert found.seconds_per_step == Fraction(1, 10)
    assert found.training_cost == Fraction(1000, 10) * Fraction(5, 2) / 3600
    other = tmp_path / "job.json"
    other.write_text('{"seconds_per_step": 0.3, "auditors": 4}')
    changed = load(other, found)
    assert (changed.seconds_per_step, changed.auditors, changed.steps) == (Fraction(3, 10), 4, 1000)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "steps = ", "expected TOML, got"),
        ("a.json", "[1]", "expected names and numbers, got list"),
        ("a.json", '{"steps": 1, "steps": 2}', "a name that stands there twice"),
        ("a.json", '{"stops": 1}', "expected figures such as steps, .*, got 'stops'"),
        ("a.json", '{"steps": NaN}', "steps: expected a finite number, got NaN"),
        ("a.json", '{"steps": "7"}', "steps: expected a number, got '7'"),
        ("a.json", '{"steps": true}', "steps: expected a number, got True"),
        ("a.json", '{"steps": 1.5}', "steps: expected a whole number, got 1.5"),
        ("a.json", '{"lie_value": 1e999999}', "lie_value: expected a number of 1e-30 to 1e30"),
        ("a.json", '{"steps": 7}', "expected figures for seconds_per_step, machine_hour, lie_value, harm, got none"),
        ("a.json", "{" * 100_000, "expected at most 65536 bytes, got 100000"),
        ("a.yaml", "steps: 1", "expected a file named .toml or .json, got '.yaml'"),
    ],
)
def test_a_malformed_file_of_figures_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audit_probability": 0}, "audit_probability: expected more than 0, got 0"),
        ({"audit_probability": 2}, "audit_probability: expected 0 to 1, got 2"),
        ({"descent_levels": 6}, "descent_levels: expected 1 to 5, got 6"),
        ({"margin": 0}, "margin: expected 1 to .*, got 0"),
        ({"sample": 3}, "sample: expected at most 1 segments, got 3"),
        ({"steps": 10**12, "checkpoint_interval": 1}, "expected at most 1000000 segments, got 1000000000000"),
    ],
)
def test_a_figure_out_of_range_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Figures.of(NEEDED | changes)


def test_packaged_gas_figures_equal_those_of_the_benchmarks() -> None:
    assert json.loads(MEASURED.read_text("utf-8")) == collect(), "run python -m benchmarks.figures --commit"


def test_gas_figures_exist_only_for_one_to_five_tree_levels() -> None:
    with pytest.raises(ConfigurationError, match="1 to 5 levels"):
        measured(6)


def test_gas_of_a_games_moves_is_split_between_the_sides() -> None:
    """Two openings that show trees, three descents, five selections, and a tenth more than the medians say."""
    game = {"challenge": 100, "prove": 200, "open_steps": 30, "open_values": 40, "descend": 10, "select": 20,
            "transactions": 12, "in all": 550}  # fmt: skip
    assert sides(game) == (110, 440)
    with pytest.raises(ConfigurationError, match="expected transactions of whole rounds beside 2 openings, got 13"):
        sides(game | {"transactions": 13})


@pytest.mark.parametrize("preset", slow_except(PRESETS, "gpt2"))
def test_recommended_terms_make_honesty_and_diligence_best_replies(preset: str, gas: dict[str, int]) -> None:
    found = recommend(PRESETS[preset].figures, gas)
    assert found.holds
    assert len(found.conditions) == 8


@pytest.mark.parametrize(
    "changes", slow_except([{}, {"audit_probability": Decimal("0.2"), "auditors": 3}, {"sample": 10}], {})
)
def test_a_stake_below_the_recommended_one_does_not_deter(changes: dict[str, object], gas: dict[str, int]) -> None:
    f = Figures.of(changes, small())
    found = recommend(f, gas)
    assert found.holds
    # Relief makes it dearer for a cheat to report itself; the stake does not count on it.
    lower = replace(found.terms, trainer_stake=found.terms.trainer_stake * 98 // 100, challenger_stake=0)
    s = f.economics(lower, gas)
    worst = (
        replace(s, lie=s.lie * 2, training=s.training * 2, audit=s.audit * 2),
        replace(s, audit_probability=s.audit_probability / 2),
        replace(s, bought=(1 + s.bought) / 2),
    )
    assert not all(c.holds for at in worst for c in (honesty(at), disbelief(at))) or not stuffing(worst[0]).holds


@pytest.mark.slow
def test_a_margin_ends_where_a_condition_breaks(cases: Callable[[], None], gas: dict[str, int]) -> None:
    f = small()
    found = recommend(f, gas)
    joined = f.economics(found.terms, gas)
    for margin in margins(f, gas, found):
        names = {"value of the lie": "lie_value", "gas price": "gas_price", "dollars for an ether": "ether"}
        if margin.figure not in names:
            continue
        name = names[margin.figure]
        for factor, breaks in ((margin.down, margin.breaks_down), (margin.up, margin.breaks_up)):
            if factor is None:
                continue
            step = Fraction(102, 100) if factor >= 1 else Fraction(98, 100)
            inside = replace(f, bought=joined.bought, **{name: getattr(f, name) * factor})
            outside = replace(inside, **{name: getattr(inside, name) * step})
            holding, broken = (
                [c.name for c in conditions(s)[1:] if not c.holds]
                for at in (inside, outside)
                for s in [at.economics(found.terms, gas, joined_for=joined.stranger_gain)]
            )
            assert holding == []
            assert breaks in broken
            cases()


def test_no_stake_is_enough_if_nobody_looks(gas: dict[str, int]) -> None:
    f = replace(small(), lie_value=Fraction(10**15), audit_probability=Fraction(1, 10**12), capital_rate=Fraction(0))
    with pytest.raises(ConfigurationError, match="expected a stake that deters every cheat, got none"):
        least_stake(f, gas, times(f))


def test_times_above_the_contracts_maximum_are_refused(gas: dict[str, int]) -> None:
    f = replace(small(), seconds_per_step=Fraction(10**10), checkpoint_interval=100_000)
    with pytest.raises(ConfigurationError, match="expected times of at most 268435456 seconds"):
        recommend(f, gas)


@pytest.mark.slow
def test_economics_tables_and_json_agree_with_the_recommendation(gas: dict[str, int]) -> None:
    found = find(small(), gas)
    content = json.loads(json.dumps(document(found)))
    assert content["terms"]["trainer_stake"] == found.recommendation.terms.trainer_stake
    assert content["agree"] == list(agree_options(found.recommendation))
    assert set(content["figures"]) == set(FIGURES)
    titles = [table.title for table in tables(found)]
    assert len(titles) == len(set(titles)) == 7
    assert all(len(row) == len(table.header) for table in tables(found) for row in table.rows)
    regimes = {regime.name: regime.equilibrium for regime in found.regimes}
    assert regimes["no seats: nobody pays auditors"].lies == 1
    assert regimes["strangers with seats"].lies == 0
    assert regimes["strangers with seats"].audit_probability == 1


def test_windows_are_long_enough_to_replay_a_segment_of_the_slowest_data() -> None:
    """Twice as slow data double the replay time and the window, and leave the audit time as it is."""
    f = replace(small(), margin=Fraction(2), slow_data=Fraction(3), least_window=1)
    segment, slower = f.segment_seconds, replace(f, slow_data=Fraction(6))
    assert times(f).replay_time == times(f).challenge_window == -(-ceil(2 * 3 * segment) // 60) * 60
    assert times(slower).replay_time >= 2 * times(f).replay_time - 60
    assert times(slower).audit_time == times(f).audit_time == -(-ceil(2 * segment) // 60) * 60
    assert times(replace(f, sample=50)).challenge_window == -(-ceil(2 * 50 * segment) // 60) * 60
    assert PRESETS["gpt2"].figures.slow_data == WORST >= 1


def test_recommended_times_allow_the_run_and_do_not_lock_stakes_too_long() -> None:
    """The deadline holds the run on the worst data, and neither side's stake is held for too long."""
    for preset in PRESETS.values():
        f = preset.figures
        found, segment = times(f), f.slow_data * f.segment_seconds
        assert 2 * f.segment_seconds <= found.audit_time <= found.challenge_window
        assert found.deadline >= f.segments * segment + found.challenge_window
        assert found.deadline <= HELD_RUNS * f.segments * segment + PATIENCE
