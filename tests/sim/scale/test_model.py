"""Costs: held-out points within their bounds, gas of a played game, monotone growth, bottlenecks."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.yard import INTERVAL, STEPS, Yard, any_cheat, sums_of
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.retention import Keep
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.moves import OpenValues
from tiebreak.sim.scale.bottleneck import DIRECTIONS, Bottleneck, Budgets, Growth, budgets_of
from tiebreak.sim.scale.curves import base, document, sizes
from tiebreak.sim.scale.heldout import comparisons
from tiebreak.sim.scale.measurements import Measurements
from tiebreak.sim.scale.model import WHAT, CostModel, Costs, Setting, execution, features_of, gas_features, whole
from tiebreak.sim.scale.subjects import program_subject, transformer_subject
from tiebreak.sim.scale.walks import place_of


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return Measurements.read()


@pytest.fixture(scope="module")
def model(measured: Measurements) -> CostModel:
    return CostModel.of(measured)


@pytest.fixture(scope="module")
def growth(model: CostModel) -> Growth:
    return Growth(model=model, budgets=budgets_of(Budgets()))


def test_every_held_out_point_is_within_its_bound(model: CostModel, measured: Measurements) -> None:
    found = comparisons(model, measured)
    assert {c.group for c in found} == {"time", "memory", "logs", "gas", "moves"}
    assert len(found) >= 40
    assert [(c.what, c.case, c.factor) for c in found if not c.holds] == []
    exact = [c for c in found if c.group == "moves"]
    assert all(c.predicted.value == c.measured for c in exact)
    assert len(exact) == 8


def test_nothing_held_out_was_fitted_to(model: CostModel, measured: Measurements) -> None:
    """Without the held-out rows the same model comes out."""
    rows = {key: v for key, v in measured.table.values.items() if key[1] not in {s.name for s in measured.held_out}}
    without = replace(
        measured, table=replace(measured.table, values=rows), steps=tuple(measured.fitted), others={}, places={}
    )
    again = CostModel.of(without)
    assert again.trainer.coefficients == model.trainer.coefficients
    assert again.gas.moves.coefficients == model.gas.moves.coefficients
    assert again.memory.coefficients == model.memory.coefficients


@pytest.mark.slow
def test_gas_of_a_game_that_was_not_measured(model: CostModel, yard: Yard) -> None:
    """A dispute in another program, played on the chain: within 5 %, and most moves within 2 %."""
    leaf = sums_of(yard.program, 12)[0]
    yard.convict(any_cheat(yard.program, leaf, step=4, rng=random.Random(1)))  # the first payout
    match = yard.convict(any_cheat(yard.program, leaf, step=5, rng=random.Random(2)), levels=3)
    assert match.chain is not None
    values = next(p.move for p in match.moves if isinstance(p.move, OpenValues))
    gas, dearest = model.gas.dispute(place_of(match.final, yard.program, values.loss_bits))
    played = match.chain.start_gas + sum(p.gas or 0 for p in match.moves)
    assert gas.value == pytest.approx(played, rel=0.05)
    assert dearest.value == pytest.approx(max(p.gas or 0 for p in match.moves), rel=0.1)


def test_every_measured_move_is_fitted_closely(model: CostModel, measured: Measurements) -> None:
    off = []
    for game in measured.games[1:]:
        for move in game.moves:
            found = model.gas.move(move.kind, move.nodes, move.siblings, move.zeros, move.others)
            off.append(abs(found.value / move.gas - 1))
    assert len(off) > 500
    assert max(off) < 0.06
    assert sorted(off)[len(off) // 2] < 0.01


def test_the_floor_of_calldata() -> None:
    assert whole(0, 0, 1000) == 21_000 + 40_000
    assert whole(100_000, 0, 1000) == 21_000 + 100_000 + 16_000


def test_a_kind_of_move_that_does_not_exist_is_refused_and_a_new_proof_is_dear(model: CostModel) -> None:
    with pytest.raises(ConfigurationError, match="kind of move"):
        model.gas.move("jump", 1, 1, 10, 10)
    unknown = model.gas.move("prove shuffle 0", 0, 30, 500, 3000)
    known = model.gas.move("prove map 1", 0, 30, 500, 3000)
    assert unknown.extrapolated
    assert unknown.value >= known.value
    assert gas_features("select values first last", 0, 3, 9).keys() >= {"select values first", "select values last"}


def test_gas_of_a_job_does_not_depend_on_how_many_there_are(measured: Measurements) -> None:
    for name in ("create", "accept", "head", "settle", "withdraw"):
        found = [measured.table.get(f"board: {name}", f"after {n} jobs", "gas") for n in (1, 20, 100)]
        assert max(found) - min(found) < 0.002 * max(found)


def test_execution_is_what_is_left(measured: Measurements) -> None:
    for move in measured.games[1].moves:
        assert execution(move) > 1000
        assert features_of(move)["calldata"] == move.zeros + move.others


# ---------------------------------------------------------------- a job's costs


def test_bytes_of_a_run_directory(model: CostModel, yard: Yard) -> None:
    """Of a run that was made: states and records to the byte, all of it nearly."""
    run: RunDirectory = yard.arena().run
    subject = program_subject(yard.program, "yard")
    costs = model.costs(Setting(subject=subject, steps=STEPS, interval=INTERVAL))
    assert costs.records_bytes.value == (run.path / "records.bin").stat().st_size
    size = (run.path / "checkpoints" / f"{INTERVAL:012d}.safetensors").stat().st_size
    assert 0 < size - costs.state_bytes.value < 160 * subject.counts.entries
    total = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert costs.run_bytes.value == pytest.approx(total, rel=0.25)  # of a state of 3 kB, most is its header


@pytest.mark.parametrize(("keep", "kept", "gap"), [("all", 11, 0), ("every:3", 5, 200), ("last", 2, 900)])
def test_what_is_kept(keep: str, kept: int, gap: int) -> None:
    setting = replace(base(), steps=1000, interval=100, keep=Keep.parse(keep))
    assert (setting.checkpoints, setting.kept, setting.gap) == (10, kept, gap)


@given(
    parameters=st.integers(10**6, 10**12),
    steps=st.integers(2, 10**7),
    jobs=st.integers(1, 10**5),
    levels=st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_more_of_anything_costs_no_less(model: CostModel, parameters: int, steps: int, jobs: int, levels: int) -> None:
    def costs(p: int, s: int, j: int) -> Costs:
        subject = transformer_subject(p, sequence=256, batch=4, steps=s, interval=2)
        return model.costs(Setting(subject=subject, steps=s, interval=2, jobs=j, levels=levels))

    here = costs(parameters, steps, jobs)
    assert all(p.low <= p.value <= p.high for p in here.named().values())
    larger = costs(4 * parameters, steps, jobs)
    for more in (
        larger,
        costs(parameters, 4 * steps, jobs),
        costs(parameters, steps, 2 * jobs),
    ):
        # What a dispute has to open also depends on how the disputed tensors fall into chunks.
        free = {"slowdown", "message_bytes", "dispute_gas", "move_gas", "all_gas"} if more is larger else {"slowdown"}
        for name, prediction in more.named().items():
            assert name in free or prediction.value >= 0.999 * here.named()[name].value, name


def test_a_users_own_step_replaces_the_fitted_one(model: CostModel) -> None:
    own, fitted = model.costs(base(step_seconds=0.5)), model.costs(base())
    assert own.plain_step.value == 0.5
    assert own.trainer_step.value == pytest.approx(0.5 * fitted.slowdown.value)
    assert own.slowdown == fitted.slowdown
    assert own.dispute_gas == fitted.dispute_gas


@pytest.mark.parametrize(
    "change",
    [{"interval": 0}, {"interval": 20_000}, {"jobs": 0}, {"disputed": 1.5}, {"step_seconds": 0.0}, {"steps": 0}],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="expected "):
        replace(base(), **change)  # type: ignore[arg-type]


def test_policy_logged_has_logs(model: CostModel) -> None:
    exact, logged = model.costs(base()), model.costs(replace(base(), logged=True))
    assert exact.log_bytes.value == 0
    assert logged.log_bytes.value > 1000 * base().steps
    assert logged.run_bytes.value > exact.run_bytes.value


# ---------------------------------------------------------------- bottlenecks


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_up_to_a_bottleneck_all_budgets_hold_and_beyond_it_the_first_does_not(growth: Growth, direction: str) -> None:
    generous = budgets_of(Budgets(days=3000, disk_bytes=1e15, replay_time=1e7))
    growth = replace(growth, budgets=generous)
    setting = replace(growth.at(base(), "parameters", 10**6), steps=1000, interval=100)
    found = growth.first(setting, direction)
    assert found.at is not None
    assert found.first is not None
    assert growth.spent(growth.at(setting, direction, int(found.at)))[0].share <= 1
    beyond = growth.at(setting, direction, int(found.at * 1.3) + 1)
    shares = {spent.budget: spent.share for spent in growth.spent(beyond)}
    assert shares[found.first.budget] > 1


def test_a_job_that_is_over_a_budget_already_is_told(growth: Growth) -> None:
    found = growth.first(growth.at(base(), "parameters", 10**12), "jobs")
    assert found.at is None
    assert found.first is not None
    assert found.first.share > 1


def test_nothing_gives_way_where_nothing_is_limited(growth: Growth) -> None:
    free = replace(growth, budgets=())
    with pytest.raises(IndexError):
        free.first(base(), "jobs")
    gas = tuple(b for b in growth.budgets if b.name == "gas of one block")
    found = replace(growth, budgets=gas).first(base(), "jobs")
    assert isinstance(found, Bottleneck)
    assert found.first is None


def test_a_chain_of_less_gas_gives_way_earlier(model: CostModel) -> None:
    def jobs(share: float) -> float:
        few = tuple(b for b in budgets_of(Budgets(chain_share=share)) if b.name == "gas of the chain")
        found = Growth(model=model, budgets=few).first(base(), "jobs")
        assert found.at is not None
        return found.at

    assert jobs(0.1) == pytest.approx(10 * jobs(0.01), rel=0.01)


@pytest.mark.parametrize("name", ["memory_bytes", "days", "block_gas", "chain_share"])
def test_budgets_are_above_zero(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"expected {name} above zero"):
        Budgets(**{name: 0.0})


@pytest.mark.slow
def test_the_curves_cover_what_they_say(measured: Measurements) -> None:
    assert sizes("parameters")[0] == 10**6
    assert sizes("parameters")[-1] == 10**12
    assert (sizes("steps")[0], sizes("steps")[-1]) == (100, 10**7)
    assert (sizes("jobs")[0], sizes("jobs")[-1]) == (1, 10**5)
    found = document(measured, Budgets())
    assert set(found["curves"]) == set(DIRECTIONS)
    for direction in DIRECTIONS:
        assert [point["size"] for point in found["curves"][direction]] == sizes(direction)
        assert all(set(point["costs"]) == set(WHAT) for point in found["curves"][direction])
    assert found == document(measured, Budgets())
    largest = found["curves"]["parameters"][-1]["costs"]["trainer_step"]
    assert largest["extrapolated"]
    assert [b["direction"] for b in found["bottlenecks"]] == list(DIRECTIONS)
