"""Numbers and digests as a demo shows them."""

from tiebreak.protocol.commitments.terms import ether


def short(digest: str) -> str:
    """The ends of a long hex string; short ones as they are."""
    return digest if len(digest) <= 18 else f"{digest[:10]}…{digest[-6:]}"


def share(part: int, whole: int) -> str:
    """A small ratio, readable over many orders of magnitude."""
    return "0" if part == 0 or whole == 0 else f"{part / whole:.1e}"


def whole(number: int | None) -> str:
    """A whole number with thousands separated, or a dash."""
    return "–" if number is None else f"{number:,}"


def gain(wei: int) -> str:
    """What somebody gained, or with a minus lost."""
    return f"{'+' if wei >= 0 else ''}{ether(wei)}"
