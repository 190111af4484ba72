"""The closed form of GPT-2's step against captured programs, number by number."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale_workloads import INTERVAL, TRANSFORMERS, gpt
from benchmarks.workloads import STEPS
from tiebreak.engine.capture.compile import MODEL, compile_task
from tiebreak.sim.scale.counts import Counts, Transformer, counts_of, transformer_counts, transformer_near
from tiebreak.sim.scale.measurements import Measurements

SMALL = (
    Transformer(layers=2, width=24, heads=3, vocabulary=37, context=15, sequence=10, batch=5),
    Transformer(layers=1, width=64, heads=2, vocabulary=500, context=20, sequence=16, batch=3),
    Transformer(layers=3, width=14, heads=2, vocabulary=53, context=11, sequence=10, batch=2),
)
GPT2 = Transformer(layers=12, width=768, heads=12, vocabulary=50257, context=1024, sequence=64, batch=8)


def assert_equal(found: Counts, expected: Counts, approximately: float = 0.05) -> None:
    for field in fields(Counts):
        ours, true = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "live_bytes":
            assert ours == pytest.approx(true, rel=approximately)
        else:
            assert ours == true, field.name


@pytest.mark.parametrize("model", SMALL, ids=lambda m: f"{m.layers}x{m.width}")
def test_a_captured_transformer_has_the_counts_of_the_closed_form(model: Transformer) -> None:
    compiled = compile_task(gpt(model))
    assert_equal(transformer_counts(model, steps=STEPS, interval=INTERVAL), counts_of(compiled.program))
    assert model.parameters == sum(t.numel() for name, t in compiled.state.items() if name.startswith(MODEL))


def test_the_models_that_were_measured_have_them_too() -> None:
    """GPT-2 124M among them, whose closed form nothing was fitted to."""
    measured = Measurements.read()
    for name, model in {**TRANSFORMERS, "gpt2": GPT2}.items():
        step = measured.step(name)
        found = transformer_counts(model, steps=STEPS, interval=INTERVAL)
        names = ("entries", "products", "terms", "logged_elements", "state_bytes", "largest")
        assert [getattr(found, n) for n in names] == [getattr(step.counts, n) for n in names], name
        # Where two constants of a program are equal, it has an instruction less.
        assert found.instructions - step.counts.instructions in ((0,) if name == "gpt2" else (0, 1))
        assert found.elements == pytest.approx(step.counts.elements, rel=1e-3)
        assert found.live_bytes == pytest.approx(step.counts.live_bytes, rel=0.1)
        assert model.parameters == step.parameters


@given(st.integers(10**5, 10**13))
@settings(max_examples=50, deadline=None)
def test_some_member_of_the_family_is_near_any_number_of_parameters(parameters: int) -> None:
    model = transformer_near(parameters, sequence=64, batch=2)
    assert 0.6 < model.parameters / parameters < 1.6
    assert model.width % model.heads == 0


def test_the_family_grows_and_is_gpt2_at_its_size() -> None:
    sizes = [transformer_near(10**k, sequence=1024, batch=8).parameters for k in range(5, 14)]
    assert sizes == sorted(set(sizes))
    assert transformer_near(124_000_000, sequence=1024, batch=8).parameters == GPT2.parameters == 124_439_808
