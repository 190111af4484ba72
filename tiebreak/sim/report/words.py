"""Numbers as text: few digits, a unit that suits. What is shown reads back to the number, to half its last digit."""

import math
from typing import Final

from tiebreak.sim.report.tracing import Number, Shown

DASH: Final = "–"
"""Where there is no number."""
DIGITS: Final = 3
"""That a reader needs of a rounded number."""
Cell = Shown | str
Units = tuple[tuple[float, float, str], ...]
"""From which size on, what one of the unit is, its name; the largest first."""


def rounded(value: float, digits: int = DIGITS) -> str:
    """To so many digits that count, thousands separated, without an exponent from 0.001 to 10^9."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if not -DIGITS <= power < 9:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - power)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def whole(number: Number | None) -> Cell:
    """All its digits, thousands separated: for counts."""
    if number is None:
        return DASH
    return Shown(f"{number.value:,}", number) if isinstance(number.value, int) else plain(number)


def plain(number: Number | None) -> Cell:
    """A number without a unit, rounded."""
    return DASH if number is None else Shown(rounded(number.value), number)


def times(number: Number | None) -> Cell:
    """A factor."""
    return DASH if number is None else Shown(f"{rounded(number.value)}×", number)


def percent(number: Number | None) -> Cell:
    """A share of one."""
    return DASH if number is None else Shown(f"{rounded(100 * number.value)}%", number)


def signed(cell: Cell) -> Cell:
    """A plus before what was gained."""
    return Shown(f"+{cell.text}", cell.number) if isinstance(cell, Shown) and cell.number.value > 0 else cell


def _scaled(number: Number | None, units: Units) -> Cell:
    """In the first unit that the number is large enough for, or else in the last."""
    if number is None:
        return DASH
    size = abs(number.value)
    _, scale, unit = next((entry for entry in units if size >= entry[0]), units[-1])
    return Shown(f"{rounded(number.value / scale)} {unit}".strip() if number.value else "0", number)


def _each(*units: tuple[float, str]) -> Units:
    return tuple((scale, scale, name) for scale, name in units)


COUNTS: Final = _each((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
SPANS: Final[Units] = (
    (2 * 365.25 * 86400, 365.25 * 86400, "years"),
    (2 * 86400, 86400, "days"),
    *_each((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")),
)
SIZES: Final = _each((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
WEI: Final[Units] = ((1e14, 1e18, "ETH"), (1e6, 1e9, "gwei"), (1, 1, "wei"))


def short(number: Number | None) -> Cell:
    """A count, rounded: thousands and millions."""
    return _scaled(number, COUNTS)


def span(number: Number | None) -> Cell:
    """Seconds, in the unit that suits."""
    return _scaled(number, SPANS)


def size(number: Number | None) -> Cell:
    """Bytes."""
    return _scaled(number, SIZES)


def ether(number: Number | None) -> Cell:
    """Wei, in ether or what suits."""
    return _scaled(number, WEI)
