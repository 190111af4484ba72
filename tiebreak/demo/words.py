"""Formats numbers and digests for the demo."""

from tiebreak.protocol.commitments.terms import ether


def short(digest: str) -> str:
    """The two ends of a long hex string; a short one stays whole."""
    return digest if len(digest) <= 18 else f"{digest[:10]}…{digest[-6:]}"


def share(part: int, whole: int) -> str:
    """Formats a ratio so that it is readable over many orders of magnitude."""
    return "0" if part == 0 or whole == 0 else f"{part / whole:.1e}"


def whole(number: int | None) -> str:
    """Formats a whole number with separated thousands, or a dash for None."""
    return "–" if number is None else f"{number:,}"


def gain(wei: int) -> str:
    """Formats what a party gained; a minus marks a loss."""
    return f"{'+' if wei >= 0 else ''}{ether(wei)}"
