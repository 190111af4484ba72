"""Seals: a challenger commits to its answer before it reveals it (SPEC section 10, docs/decisions/seals-and-proofs.md).

    seal     H(`tb.seal.` || game id || answer || salt)
    answer   32 bytes: the correct digest at the leaf, or an element's bits as a number, big-endian
    salt     32 bytes that nobody else can guess

The last move reveals the answer and its whole proof in public before it takes effect. Another party playing the same
game in parallel could copy the proof and send it first. The seal prevents that: the copier would have had to seal the
right answer a clock before.

Each part of the seal defends against copying:
- the salt, because an element has only 32 bits: without it, a seal is opened by trying all answers;
- the game id, which names the challenger, because a seal could otherwise be copied like any move and opened with the
  salt once that is revealed;
- the clock, because a party that keeps a proof in transit out of a block could otherwise seal and prove meanwhile.

So a challenger sends its proof only once its seal is in place: before that, the proof would reveal what to seal.

Salts are derived, not stored: anyone with the secret and the state of a game can derive them again, even after a crash.
One secret may serve many games (a salt depends on the game), but must not be used as a key for anything else.
"""

import hmac
from typing import Final

from tiebreak.protocol.codec import check_bytes, unsigned
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

SECRET_BYTES: Final = 32
_SALT: Final = b"tiebreak: salt of a seal"


def seal(game_id: bytes, answer: bytes, salt: bytes) -> Digest:
    """The seal of an answer in a game. All three arguments have 32 bytes; raises `EncodingError` otherwise."""
    parts = (("game id", game_id), ("answer", answer), ("salt", salt))
    return tagged_hash(Tag.SEAL, *(check_bytes(name, part, 32) for name, part in parts))


def element_answer(data: bytes) -> bytes:
    """The answer for an element, from its data (little-endian): its bits as a 32-byte big-endian number."""
    return data[::-1].rjust(32, b"\0")


def derive_salt(secret: bytes, game_id: bytes, place: tuple[int, ...]) -> bytes:
    """The salt for one place in one game: HMAC-SHA256 under the secret, so one salt reveals nothing about another.

    `place`: numbers below 2^64 that name the sealed thing. Their count must always be the same.
    """
    check_bytes("secret", secret, SECRET_BYTES)
    check_bytes("game id", game_id, 32)
    return hmac.digest(secret, _SALT + game_id + b"".join(unsigned(number, 8) for number in place), "sha256")
