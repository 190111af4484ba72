"""Seals: how a challenger fixes its answer before it shows it (SPEC section 10, decision 0012).

    seal     H(`tb.seal.` || game id || answer || salt)
    answer   32 bytes: the digest that must stand at the leaf, or an element's bits as a number, big-endian
    salt     32 bytes that nobody else can guess

The last move shows the answer and everything that proves it, in public, before it counts. Whoever plays the same game
beside it could send the same proof first. It cannot: it had to seal the right answer at an earlier instant.

Why each part is there, against who copies:
- the salt, because an element has 32 bits: without it a seal is opened by trying them all;
- the game id, which names the challenger, because a seal could be copied like any other move and opened with the
  salt, once that is shown;
- an earlier instant, because who sees a proof on its way could seal its answer and prove it at the same instant.

So a challenger sends its proof only once its seal stands: until then the proof shows what is to be sealed.

Salts are derived, not stored: whoever has the secret and the state of a game finds them again, after a crash too. A
secret may serve many games (a salt depends on the game), but is no key for anything else.
"""

import hmac
from typing import Final

from tiebreak.protocol.codec import check_bytes, unsigned
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

SECRET_BYTES: Final = 32
_SALT: Final = b"tiebreak: salt of a seal"


def seal(game_id: bytes, answer: bytes, salt: bytes) -> Digest:
    """The seal of an answer in a game."""
    parts = (("game id", game_id), ("answer", answer), ("salt", salt))
    return tagged_hash(Tag.SEAL, *(check_bytes(name, part, 32) for name, part in parts))


def element_answer(data: bytes) -> bytes:
    """The answer that is an element, given by its data (little-endian)."""
    return data[::-1].rjust(32, b"\0")


def derive_salt(secret: bytes, game_id: bytes, place: tuple[int, ...]) -> bytes:
    """The salt for one place of one game: HMAC-SHA256 under the secret, so one salt says nothing about another.

    place: numbers below 2^64 that name what is sealed, always as many.
    """
    check_bytes("secret", secret, SECRET_BYTES)
    check_bytes("game id", game_id, 32)
    return hmac.digest(secret, _SALT + game_id + b"".join(unsigned(number, 8) for number in place), "sha256")
