"""Messages: signed, chained moves (SPEC section 9).

    message   msgpack array [1, job id, game id, sequence, hash of the message answered, kind, body]
    hash      H(`tb.messg` || message)
    on wire   msgpack array [message (bin), signature (bin 65)], over EIP-712 Message(hash)

Numbered plan of `Transcript.append`, which takes untrusted bytes: (1) there is one canonical encoding within the size
limit, (2) job and game are this transcript's, (3) the sequence number is the next one, (4) the message answers the
previous one, (5) the kind is one that the side to move may send, and that side signed it; otherwise one side could
concede for the other. A message that fails changes nothing. Whether the move is legal is decided by
`tiebreak.protocol.game.rules`.
"""

from dataclasses import dataclass
from typing import Annotated, Final, cast

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain, hash_struct, typed_digest
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.moves import AnyMove, Concede, Move, Side, kind_name
from tiebreak.protocol.packing import U64, Data, Fields, Packed, Raw, Record, Root, Uint, pack, unpack
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 1 << 17
"""Limit on the wire. The largest proof (4 terms of 2 operands, 8 tensors and chunks) needs less than half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Record):
    """A move at its place in a game. `previous` is the hash of the message it answers; the game id in the first."""

    job_id: Root
    game_id: Root
    sequence: U64
    previous: Root
    move: Annotated[Move, AnyMove()]

    def encode(self) -> bytes:
        """The bytes that are hashed and signed."""
        *place, move = self.pack()
        return pack([VERSION, *place, *cast("tuple[Packed, ...]", move)])

    @classmethod
    def decode(cls, data: bytes) -> "Message":
        """Decode what `encode` wrote. Raises `EncodingError` for any other encoding."""
        f = Fields("message", unpack(data, MAX_MESSAGE_BYTES), 7)
        if (version := f.take(Uint(64))) != VERSION:
            raise EncodingError(f"message version: expected {VERSION}, got {version}")
        *place, kind, body = (f.next()[1] for _ in range(6))
        return cls.unpack("message", [*place, (kind, body)])

    @property
    def hash(self) -> Digest:
        """The value that the next message carries as `previous`."""
        return message_hash(self.encode())


def message_hash(encoded: bytes) -> Digest:
    return tagged_hash(Tag.MESSAGE, encoded)


def signing_digest(domain: Domain, encoded: bytes) -> Digest:
    """The digest that the sender signs: EIP-712 `Message(messageHash)`."""
    return typed_digest(domain, hash_struct("Message", {"message_hash": Raw(32)}, (message_hash(encoded),)))


def seal(message: Message, domain: Domain, key: keys.PrivateKey) -> bytes:
    """The signed message as it travels on the wire."""
    encoded = message.encode()
    return pack([encoded, key.sign(signing_digest(domain, encoded))])


def open_wire(wire: bytes) -> tuple[bytes, bytes]:
    """The encoded message and the signature in a wire message, neither checked yet. Raises `EncodingError`."""
    f = Fields("wire message", unpack(wire, MAX_MESSAGE_BYTES), 2)
    return f.take(Data(MAX_MESSAGE_BYTES)), f.take(Raw(keys.SIGNATURE_BYTES))


class Transcript:
    """The signed messages of one game, in order. Either party can show them to anyone."""

    def __init__(self, *, job_id: Digest, game_id: Digest, domain: Domain, defender: Address, challenger: Address):
        self.job_id = job_id
        self.game_id = game_id
        self.domain = domain
        self.challenger = challenger
        self._parties = {Side.DEFENDER: defender, Side.CHALLENGER: challenger}
        self._wires: list[bytes] = []
        self._previous = game_id

    @property
    def wires(self) -> tuple[bytes, ...]:
        """The accepted messages, as they travelled."""
        return tuple(self._wires)

    @property
    def messages(self) -> int:
        """Number of messages accepted so far."""
        return len(self._wires)

    def next_message(self, move: Move) -> Message:
        """Wrap a move in the next message of this game."""
        return Message(
            job_id=self.job_id, game_id=self.game_id, sequence=self.messages, previous=self._previous, move=move
        )

    def append(self, wire: bytes, turn: Side) -> Move:
        """Check a message, store it and return its move. `turn` is the side to move in the current state.

        Raises `VerificationError` and stores nothing if a check fails.
        """
        encoded, signature = open_wire(wire)  # (1)
        message = Message.decode(encoded)
        for name, expected, found in (
            ("job", self.job_id, message.job_id),  # (2)
            ("game", self.game_id, message.game_id),
            ("message answered", self._previous, message.previous),  # (4)
        ):
            if found != expected:
                raise VerificationError(f"{name}: expected {expected.hex()}, got {found.hex()}")
        if message.sequence != self.messages:  # (3)
            raise VerificationError(f"sequence: expected {self.messages}, got {message.sequence}")
        if not isinstance(message.move, Concede) and message.move.KIND.mover is not turn:  # (5)
            kind = kind_name(message.move)
            raise VerificationError(f"expected a move of the {turn.name.lower()}, got one of its opponent ({kind})")
        keys.verify(signing_digest(self.domain, encoded), signature, self._parties[turn])  # (5)
        self._wires.append(bytes(wire))
        self._previous = message_hash(encoded)
        return message.move
