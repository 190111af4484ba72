"""Error families, grouped by fault: the class tells who has to change something."""

from collections.abc import Iterator
from contextlib import contextmanager


def printable(text: str) -> str:
    """The text without control characters other than line ends, by which a stranger could write to the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


class TiebreakError(Exception):
    """Base of every error this project raises on purpose. Its text may quote strangers, and is safe on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__())


class VerificationError(TiebreakError):
    """Input from another party is broken or hostile."""


class EncodingError(VerificationError):
    """Bytes do not decode to exactly one well-formed value."""


def check_version(what: str, found: int, expected: int) -> None:
    """Raises `EncodingError` for a version of a format other than the one that is read."""
    if found != expected:
        later = "; a later version of tiebreak wrote it" if found > expected else ""
        raise EncodingError(f"{what}: expected version {expected}, got {found}{later}")


class InvalidSnapshot(EncodingError):
    """A field of a snapshot has a value that it has in no state of a game (SPEC section 10.1); the contract's error."""

    def __init__(self, offset: int, value: int) -> None:
        self.offset, self.value = offset, value
        super().__init__(offset, value)

    def __str__(self) -> str:
        return f"InvalidSnapshot(offset={self.offset}, value={self.value})"


class ProgramError(VerificationError):
    """A program breaks a rule of SPEC section 4. Names the instruction and the rule."""

    def __init__(self, instruction: int | None, rule: str) -> None:
        self.instruction, self.rule = instruction, rule
        where = "program" if instruction is None else f"instruction {instruction}"
        super().__init__(f"{where}: {rule}")


class ProofError(VerificationError):
    """An opening does not lead to the digest it claims."""


class SignatureError(VerificationError):
    """A signature is malformed, or was not made by the expected key."""


class ForbiddenLoss(VerificationError):
    """A signed record has a loss that its job forbids. That convicts the trainer; nothing need be replayed."""


class IllegalMove(VerificationError):
    """The rules of the game refuse a move; the game is unchanged."""


class CannotCheck(TiebreakError):
    """Data that an audit needs is withheld or damaged. The record is neither proven false nor audited."""


class ConfigurationError(TiebreakError):
    """The request cannot be carried out as configured. The message says what to change."""


class StateError(TiebreakError):
    """Calls came in the wrong order, or a run or game is in the wrong state for this call."""


@contextmanager
def own_file() -> Iterator[None]:
    """Turns an `EncodingError` into a `ConfigurationError` while a file that the user provided is read."""
    try:
        yield
    except EncodingError as error:
        raise ConfigurationError(str(error)) from error
