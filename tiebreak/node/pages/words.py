"""Numbers, instants and digests as a page says them. All of it is for readers; nothing here is read back."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.program import reference
from tiebreak.protocol.program.isa import DType

Values = dict[str, Any]
"""The values that a template shows, by name. Texts of others are clipped here, and escaped by the template."""
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
MAX_TEXT: Final = 160
"""Characters of a text of somebody else's that a page shows."""


def short(digest: bytes | str) -> str:
    """Both ends of a digest in hexadecimal, enough to tell two apart at a glance and to find the whole."""
    text = digest if isinstance(digest, str) else digest.hex()
    return text if len(text) <= 14 else f"{text[:6]}…{text[-4:]}"


def address(account: bytes) -> str:
    return "0x" + account.hex()


def clipped(text: str) -> str:
    """A text of somebody else's as one line of bounded length, without what would turn a line around or hide it."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[: MAX_TEXT + 1])
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


def whole(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def duration(seconds: int) -> str:
    """Seconds in the two largest units: `2 hours 30 minutes`."""
    parts = []
    for name, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count:,} {name}{'s' if count > 1 else ''}")
        if parts and (len(parts) == 2 or not count):
            break
    return " ".join(parts) or "0 seconds"


def clock(seconds: int) -> str:
    """Seconds as on a chess clock: `1:02:03`, `02:03`."""
    hours, rest = divmod(max(0, seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def instant(at: int) -> str:
    """An instant in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%d %b %H:%M:%S")


def iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(wei: int) -> str:
    """Wei in ether, to six digits after the point; the exact amount should stand next to it."""
    exact = ether(wei).replace("-", "−")
    whole_part, _, rest = exact.removesuffix(" ether").partition(".")
    if len(rest) <= 6:
        return exact
    digits = rest[:6].rstrip("0")
    if not digits and not whole_part.strip("−0"):
        return f"{wei:,} wei".replace("-", "−")
    return f"≈ {whole_part}{'.' if digits else ''}{digits} ether"


def bits_of(dtype: DType, data: bytes) -> int:
    """The bits of an element as a number, from its little-endian data."""
    return int.from_bytes(data[: dtype.size], "little")


def hexadecimal(dtype: DType, bits: int) -> str:
    return f"0x{bits:0{2 * dtype.size}x}"


def decimal(dtype: DType, bits: int) -> str:
    """The number that an element's bits stand for. Nine digits tell any two FP32 numbers apart."""
    if dtype == DType.BOOL:
        return "true" if bits else "false"
    if dtype == DType.I64:
        return f"{reference.from_raw(dtype, bits):,}"
    if not float32.is_finite(bits):
        return "not a number" if float32.is_nan(bits) else "-∞" if bits >> 31 else "∞"
    number, exponent = float32.decode(bits)
    return rational(Fraction(number) * Fraction(2) ** exponent) if number else "-0" if bits >> 31 else "0"


def rational(value: Fraction) -> str:
    """A rational number to nine digits. Below the range of FP64 it is written as zero with its sign."""
    return f"{float(value):.9g}".replace("-", "−").replace("e−0", "e−").replace("e+0", "e+")


def tally(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
