"""What is shown can be read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.report.walking import agrees, reads
from tiebreak.sim.report import words
from tiebreak.sim.report.tracing import Number, Shown

FORMATS = (words.plain, words.times, words.percent, words.short, words.span, words.size, words.ether, words.whole)


@given(st.integers(-(10**24), 10**24) | st.floats(-1e15, 1e15, allow_subnormal=False), st.sampled_from(FORMATS))
def test_shown_is_the_number(value: float, how: object) -> None:
    shown = how(Number(value, "x"))  # type: ignore[operator]
    assert isinstance(shown, Shown)
    assert agrees(shown.text, value), (shown.text, value)


@given(st.integers(1, 10**9))
def test_a_count_is_shown_whole(value: int) -> None:
    shown = words.whole(Number(value, "x"))
    assert isinstance(shown, Shown)
    assert reads(shown.text)[0] == value


@pytest.mark.parametrize(
    ("how", "value", "text"),
    [
        (words.whole, 1234567, "1,234,567"),
        (words.short, 1234567, "1.23 M"),
        (words.short, 999, "999"),
        (words.percent, 0.05, "5%"),
        (words.percent, 1, "100%"),
        (words.span, 90, "1.5 min"),
        (words.span, 12, "12 s"),
        (words.span, 86400, "24 h"),
        (words.span, 172800, "2 days"),
        (words.size, 1024, "1.02 kB"),
        (words.ether, 15 * 10**17, "1.5 ETH"),
        (words.ether, -(10**15), "-0.001 ETH"),
        (words.ether, 0, "0"),
        (words.times, 12.345, "12.3×"),
        (words.plain, 0.000123456, "1.23e-04"),
        (words.plain, None, words.DASH),
        (words.whole, None, words.DASH),
        (words.ether, None, words.DASH),
    ],
)
def test_units_that_suit(how: object, value: float | None, text: str) -> None:
    cell = how(None if value is None else Number(value, "x"))  # type: ignore[operator]
    assert (cell.text if isinstance(cell, Shown) else cell) == text


def test_a_gain_has_a_plus() -> None:
    for value, text in ((5, "+5"), (-5, "-5"), (0, "0")):
        cell = words.signed(words.whole(Number(value, "x")))
        assert isinstance(cell, Shown)
        assert cell.text == text
    assert words.signed(words.DASH) == words.DASH


def test_the_doubter_is_not_fooled() -> None:
    assert not agrees("1.23 M", 1_240_000)
    assert not agrees("12", 13)
    assert not agrees("5%", 5)
    assert not agrees("0", 1e-9)
    assert not agrees("1.5 ETH", 15)
    with pytest.raises(AssertionError):
        reads("twelve")
