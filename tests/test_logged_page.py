"""docs/logged.md is what was measured, and its sentences say what its numbers say."""

import json
from typing import Any

import pytest

from benchmarks.gas_page import ROOT
from benchmarks.logged.names import (
    AUDITOR,
    AUTOCAST,
    CALIBRATED,
    EAGER,
    EXACT,
    EXACT16,
    NATIVE,
    PERMUTED,
    PROVEN,
    REORDERED,
    TRAINER,
    WITH,
    WITHOUT,
)  # fmt: skip
from benchmarks.logged.page import LOGGED, page

Values = dict[tuple[str, str], float]
"""By case and metric."""


def document(values: Values) -> dict[str, Any]:
    environment = {"cpu": "a CPU", "cores": "2", "torch threads": "2", "torch": "2"}
    rows = [{"case": case, "metric": metric, "value": value} for (case, metric), value in values.items()]
    return {"environment": environment, "rows": rows}


def text(values: Values) -> str:
    """The page, a paragraph a line."""
    return page(document(values)).replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n")


def timed(part: str, model: str, milliseconds: dict[str, float]) -> Values:
    values = {(f"{part}, {model}, {who}", "a step"): ms for who, ms in milliseconds.items()}
    for base, unit in milliseconds.items():
        for who, ms in milliseconds.items():
            values[f"{part}, {model}, {who}", f"/ {base}"] = ms / unit
    for who in (TRAINER, AUDITOR, PERMUTED):
        values[f"{part}, {model}, {who}", "handling the log"] = 0.01
    for metric in ("sparse log", "sparse / dense", "entries", "entries needed"):
        values[f"{part}, {model}", metric] = 20_000 if metric == "sparse log" else 0.0005
    return values


def speed(model: str, trainer: float, exact: float = 100) -> Values:
    return timed("speed", model, {EAGER: 50, EXACT: exact, TRAINER: trainer, AUDITOR: trainer, PERMUTED: 2 * trainer})


def bf16(model: str, trainer: float, native: bool = True) -> Values:
    times = {EAGER: 50, AUTOCAST: 25, EXACT: 100, EXACT16: 110, TRAINER: trainer, AUDITOR: trainer, PERMUTED: trainer}
    return timed("bf16", model, times) | {(f"bf16, {model}", NATIVE): native}


def test_the_page_is_made_from_what_was_measured() -> None:
    made = page(json.loads(LOGGED.read_text("utf-8")))
    assert (ROOT / "docs" / "logged.md").read_text("utf-8") == made, (
        "run python -m benchmarks.logged.page docs/logged.md"
    )


def test_what_was_not_measured_has_no_section() -> None:
    assert "##" not in text({})
    assert "a CPU" in text({})


def test_exact_is_better_where_logged_saves_no_time() -> None:
    made = text(speed("gpt2", 100) | speed("resnet50", 120))
    assert "takes, against `exact`, as long (1.00 times) on GPT-2" in made
    assert "and 1.20 times as long on ResNet-50" in made
    assert "So it saves no time." in made
    assert "**`exact` is the better policy.**" in made
    assert "20 kB a step on GPT-2" in made


def test_logged_is_better_where_it_saves_time() -> None:
    made = text(speed("gpt2", 80) | speed("resnet50", 90))
    assert "So it saves time. For that" in made
    assert "**`logged` is the better policy" in made
    assert "`exact` is the better policy" not in made


def test_a_verdict_for_some_models() -> None:
    made = text(speed("gpt2", 80) | speed("resnet50", 120))
    assert "So it saves time on GPT-2 only." in made
    assert "**Elsewhere `exact` is the better policy.**" in made


@pytest.mark.parametrize(("trainer", "better"), [(60, "`logged`"), (109, "`exact`"), (200, "`exact`")])
def test_a_verdict_of_the_bfloat16_profile(trainer: float, better: str) -> None:
    made = text(bf16("gpt2", trainer))
    assert f"{better} is the better policy" in made
    assert made.count("is the better policy") == 1
    assert f"{trainer / 50:.2f} times eager FP32 and {trainer / 25:.2f} times bfloat16 autocast" in made


def test_autocast_that_is_emulated_is_no_measure() -> None:
    assert "This CPU has no instructions for bfloat16" in text(bf16("gpt2", 60, native=False))
    assert "This CPU" not in text(bf16("gpt2", 60))


def test_a_table_of_times() -> None:
    made = text(bf16("gpt2", 60))
    assert f"| {EXACT16} | 110 | 2.20 | 4.40 | 1.10 | 1.00 |" in made
    assert "Handling it takes 1.0% of the trainer's step" in made


def logs(model: str, share: float) -> Values:
    case = f"bytes, {model}"
    values = {
        (case, "dense log: base 3, five elements a byte"): 2e7,
        (case, "naive log: a byte an element"): 1e8,
    }
    for label in (CALIBRATED, PROVEN):
        values[f"{case}, b=32, {label}", "sparse log"] = share * 2e7
        values[f"{case}, b=32, {label}", "sparse / dense"] = share
        for kind in ("plain", "products", "scatter"):
            values[f"{case}, {kind}", "elements"] = 1000
            within = f"{case}, b=32, {label}, {kind}"
            values[within, "entries"], values[within, "entries needed"] = 7, 1
            values[within, "entries needed / elements"] = 0.001
            values[within, "open to the auditor, without an entry"] = 2
    return values


def test_logs_against_their_bar() -> None:
    made = text(logs("gpt2", 0.0009))
    assert "| 32 | 18,000 | 0.090% | 18,000 | 0.090% |" in made
    assert "naive 100 MB, dense 20 MB" in made
    assert "below a thousandth of the dense log; met by all." in made
    assert "| plain, calibrated | 1,000 | 7 | 1 | 0.10% | 2 |" in made
    assert "over it: ResNet-50" in text(logs("gpt2", 0.0009) | logs("resnet50", 0.001))


def runs(own: float, order: float) -> Values:
    values: Values = {("divergence, gpt2", "weights"): 1000}
    values["divergence, gpt2, after 10 steps", "L2 distance from the start"] = 5
    for who, apart in ((WITHOUT, own), (REORDERED, order), (WITH, 0)):
        case = f"divergence, gpt2, {who}, after 10 steps"
        values[case, "weights that differ"] = 100 if apart else 0
        values[case, "L2 distance"] = apart
    return values


def test_the_order_of_the_data_against_that_of_the_sums() -> None:
    assert "Another order of the data takes the weights further: 40 times as far after 10 steps." in text(runs(0.1, 4))
    assert "the weights less far: 0.5 times" in text(runs(2, 1))
    assert "The two runs are the same bits without the log too" in text(runs(0, 1))
    assert f"| {WITH}, after 10 steps | 0 | 0% | 0 | 5 |" in text(runs(0.1, 4))
    assert f"| {WITHOUT}, after 10 steps | 100 | 10% | 0.1 | 5 |" in text(runs(0.1, 4))


def learned(mean: float) -> Values:
    values: Values = {("accuracy, digits", "steps"): 300, ("accuracy, digits", "seeds"): 3}
    for who, value in ((EAGER, 0.9), ("b=26", mean)):
        values[f"accuracy, digits, {who}", "test accuracy"] = value
        values[f"accuracy, digits, {who}", "test accuracy, least"] = value - 0.01
        values[f"accuracy, digits, {who}", "test accuracy, greatest"] = value + 0.01
    return values


def test_accuracy_against_the_spread_of_plain_training() -> None:
    assert "Eager FP32's own seeds span 0.89 to 0.91 in test accuracy: all means lie within." in text(learned(0.905))
    assert "in test accuracy: outside are the means of b=26." in text(learned(0.8))
    assert "| b=26 | 0.8 (0.79 … 0.81) |" in text(learned(0.8))


def test_thresholds_and_the_papers_rule() -> None:
    values = {
        "divergence": 0.5, "error": 0.4, "threshold": 2.0, "tolerance": 12, "distance by the paper's rule": 3.0,
        "elements that the paper's rule logs": 1.0,
    }  # fmt: skip
    made = text({("thresholds, text, float64, scatter", metric): value for metric, value in values.items()})
    assert "| a small GPT on English text: scatter, float64 | 0.5 | 0.4 | 2 | 12 | 3 | 100% |" in made
