"""Errors by fault: who has to change something."""


class TiebreakError(Exception):
    """Base of every error this project raises on purpose."""


class VerificationError(TiebreakError):
    """Input from another party is broken or hostile."""


class EncodingError(VerificationError):
    """Bytes do not decode to exactly one well-formed value."""


class ProgramError(VerificationError):
    """A program breaks a rule of SPEC section 4. Names the instruction and the rule."""

    def __init__(self, instruction: int | None, rule: str) -> None:
        self.instruction = instruction
        self.rule = rule
        where = "program" if instruction is None else f"instruction {instruction}"
        super().__init__(f"{where}: {rule}")


class ProofError(VerificationError):
    """An opening does not lead to the digest it claims."""


class SignatureError(VerificationError):
    """A signature is malformed or not by the expected key."""


class IllegalMove(VerificationError):
    """A move of the game that the rules refuse; the game is unchanged."""


class CannotCheck(TiebreakError):
    """What an audit needs is withheld or damaged. That is no proof of a false record, and no audit either."""


class ConfigurationError(TiebreakError):
    """What the user asked for cannot be done as asked. Says what to change."""


class StateError(TiebreakError):
    """A call in the wrong order, or on a run or game in the wrong state."""
