"""Messages: signed, chained moves (SPEC section 9).

    message   msgpack array [1, job id, game id, sequence, hash of the message answered, kind, body]
    hash      H(`tb.messg` || message)
    on wire   msgpack array [message (bin), signature (bin 65)]
    receipt   msgpack array [game id, number of moves, snapshot id, signature (bin 65)]

A message has one signature. While the game goes on it is over the state that the move leads to, EIP-712 `State`, so the
opponent can enter that state on the chain (docs/decisions/talking.md). It says as much as a signature of the message
would: the state before and the state after fix the move. A message that ends the game leaves no state, and is signed
itself, as EIP-712 `Message(hash)`. A receipt is a signature under the state that the opponent's move led to.

Numbered plan of `Transcript.append`, which takes untrusted bytes: (1) there is one canonical encoding within the size
limit, (2) job and game are this transcript's, (3) the sequence number is the next one, (4) the message answers the
previous one, (5) the kind is one that the side to move may send, or conceding, (6) the move is legal, save for a proof,
which only `tiebreak.protocol.game.rules` judges, (7) the sender signed the result of the message. A message that fails
changes nothing, but for one thing: if it shows two states that its sender signed at one sequence number, they are kept
as a `Fork`.
"""

from contextlib import suppress
from typing import Annotated, Final, cast

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain, TypedData
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import AnyMove, Concede, Move, Phase, Side, kind_name
from tiebreak.protocol.game.snapshot import Fork, SignedStanding, Snapshot, Standing
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import U64, Data, Fields, Packed, Raw, Record, Root, pack, unpack
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 1 << 17
"""Limit on the wire. The largest proof (4 terms of 2 operands, 8 tensors and chunks) needs less than half of it."""


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
        f = Fields.versioned("message", unpack(data, MAX_MESSAGE_BYTES), 7, VERSION)
        *place, kind, body = (f.next()[1] for _ in range(6))
        return cls.unpack("message", [*place, (kind, body)])

    @property
    def hash(self) -> Digest:
        """The value that the next message carries as `previous`."""
        return message_hash(self.encode())


def message_hash(encoded: bytes) -> Digest:
    return tagged_hash(Tag.MESSAGE, encoded)


def signing_data(domain: Domain, encoded: bytes, after: GameState | None) -> TypedData:
    """The typed data that the sender signs. `after` is the state that the move leads to; None if nothing follows it."""
    if after is None or after.is_over:
        kinds = {"message_hash": Raw(32)}
        return TypedData(domain=domain, name="Message", kinds=kinds, values=(message_hash(encoded),))
    return Standing.of(after).typed(domain)


def sign(message: Message, domain: Domain, key: keys.PrivateKey, after: GameState | None) -> bytes:
    """The signed message as it travels on the wire. `after` is as in `signing_data`."""
    encoded = message.encode()
    typed = signing_data(domain, encoded, after)
    return pack([encoded, key.sign(typed.digest, typed)])


def open_wire(wire: bytes) -> tuple[bytes, bytes]:
    """The encoded message and the signature in a wire message, neither checked yet. Raises `EncodingError`."""
    f = Fields("wire message", unpack(wire, MAX_MESSAGE_BYTES), 2)
    return f.take(Data(MAX_MESSAGE_BYTES)), f.take(Raw(keys.SIGNATURE_BYTES))


class Transcript:
    """The signed messages of one game, in order. Either party can show them to anyone.

    It follows the rules without clocks: for what is signed, it does not matter when a move is made.
    """

    def __init__(self, start: GameState, *, domain: Domain, challenger: Address):
        self.job_id = start.job.id
        self.game_id = Digest(start.game_id)
        self.domain = domain
        self.challenger = challenger
        self.conceded: Side | None = None
        self.fork: Fork | None = None
        """Evidence against one of the parties, once there is some."""
        self._parties = {Side.DEFENDER: start.job.trainer, Side.CHALLENGER: challenger}
        self._states = [start]
        """The first state, and one after each message but a proof and a concession. The last may be over."""
        self._moves: list[Move] = []
        self._wires: list[bytes] = []
        self._previous = self.game_id
        self._signed: dict[Side, dict[int, SignedStanding]] = {side: {} for side in Side}
        """Each side's signed standings of states of this transcript, by the number of moves."""
        self._seen: dict[Side, dict[int, SignedStanding]] = {side: {} for side in Side}
        """The first signed standing that came from each side for a number of moves, also of other states."""

    @property
    def wires(self) -> tuple[bytes, ...]:
        """The accepted messages, as they travelled."""
        return tuple(self._wires)

    @property
    def messages(self) -> int:
        """Number of messages accepted so far."""
        return len(self._wires)

    @property
    def state(self) -> GameState:
        """The state that the talk has led to; its clocks mean nothing."""
        return self._states[-1]

    @property
    def line(self) -> tuple[Move, ...]:
        """The moves that led to `state`."""
        return tuple(self._moves[: len(self._states) - 1])

    def stood(self, sequence: int, snapshot: bytes) -> GameState | None:
        """The state after this many moves if its snapshot has this id, else None."""
        found = self._states[sequence] if sequence < len(self._states) else None
        return None if found is None or found.is_over or Snapshot.of(found).id != snapshot else found

    def passed(self, state: GameState) -> bool:
        """Whether this is the current state of the transcript or an earlier one."""
        return not state.is_over and self.stood(state.moves, Snapshot.of(state).id) is not None

    def unanswered(self, side: Side) -> tuple[bytes, ...]:
        """A side's messages after the last one of its opponent, as they travelled."""
        count = 0
        while count < len(self._wires) and self._states[len(self._wires) - count - 1].mover is side:
            count += 1
        return tuple(self._wires[len(self._wires) - count :])

    @property
    def is_closed(self) -> bool:
        """Whether a message has ended the game."""
        return self.state.is_over or len(self._wires) == len(self._states)

    def next_message(self, move: Move) -> Message:
        """Wrap a move in the next message of this game."""
        return Message(
            job_id=self.job_id, game_id=self.game_id, sequence=self.messages, previous=self._previous, move=move
        )

    def sign(self, move: Move, key: keys.PrivateKey) -> bytes:
        """The next message of this game, signed. Raises `IllegalMove` for a move that the rules refuse."""
        return sign(self.next_message(move), self.domain, key, _after(self.state, move))

    def append(self, wire: bytes) -> Move:
        """Check a message, store it and return its move. Raises `VerificationError` if a check fails."""
        encoded, signature = open_wire(wire)  # (1)
        message = Message.decode(encoded)
        if message.job_id != self.job_id:  # (2)
            raise VerificationError(f"job: expected {self.job_id.hex()}, got {message.job_id.hex()}")
        if message.game_id != self.game_id:
            raise VerificationError(f"game: expected {self.game_id.hex()}, got {message.game_id.hex()}")
        if message.sequence < self.messages and wire != self._wires[message.sequence]:
            self._look_for_fork(message, signature)
        if self.is_closed or message.sequence != self.messages:  # (3)
            found = f"expected {'no more' if self.is_closed else self.messages}, got {message.sequence}"
            raise VerificationError(f"sequence: {found}")
        if message.previous != self._previous:  # (4)
            raise VerificationError(f"message answered: expected {self._previous.hex()}, got {message.previous.hex()}")
        sender = self._sender(message.move, encoded, signature)  # (5)
        after = _after(self.state, message.move)  # (6)
        keys.verify(signing_data(self.domain, encoded, after).digest, signature, self._parties[sender])  # (7)
        self._wires.append(bytes(wire))
        self._moves.append(message.move)
        self._previous = message_hash(encoded)
        if isinstance(message.move, Concede):
            self.conceded = sender
        if after is not None:
            self._states.append(after)
            if not after.is_over:
                self._keep(sender, SignedStanding.under(Standing.of(after), signature))
        return message.move

    def _sender(self, move: Move, encoded: bytes, signature: bytes) -> Side:
        turn = self.state.mover
        if isinstance(move, Concede):
            signer = keys.recover(signing_data(self.domain, encoded, None).digest, signature)
            return turn.other if signer == self._parties[turn.other] else turn
        if move.KIND.mover is not turn:
            kind = kind_name(move)
            raise VerificationError(f"expected a move of the {turn.name.lower()}, got one of its opponent ({kind})")
        return turn

    # ------------------------------------------------------------------ signed states

    def latest(self, signer: Side) -> tuple[GameState, SignedStanding] | None:
        """The furthest state that a side has signed, which is what its opponent can enter on the chain."""
        found = self.signed(signer)
        return found[-1] if found else None

    def signed(self, signer: Side) -> list[tuple[GameState, SignedStanding]]:
        """The states of the talk that a side has signed, in their order."""
        return [(self._states[number], found) for number, found in sorted(self._signed[signer].items())]

    def receipt(self, key: keys.PrivateKey) -> bytes:
        """A signature under the current state of the talk, for the opponent to enter it. Raises `StateError`."""
        standing = Standing.of(self.state)
        return SignedStanding.under(
            standing, key.sign(standing.digest(self.domain), standing.typed(self.domain))
        ).encode()

    def acknowledge(self, data: bytes) -> None:
        """Take a receipt from either party. Raises `VerificationError` unless it is for a state of this transcript."""
        receipt = SignedStanding.decode(data)
        standing = receipt.standing
        if standing.game_id != self.game_id or standing.sequence >= len(self._states):
            raise VerificationError(f"receipt: expected one for this game, after at most {len(self._states) - 1} moves")
        signer = keys.recover(standing.digest(self.domain), receipt.signature)
        side = next((side for side, address in self._parties.items() if address == signer), None)
        if side is None:
            raise VerificationError(f"receipt: expected a signature by one of the parties, got one by 0x{signer.hex()}")
        is_right = self.stood(standing.sequence, standing.snapshot) is not None  # a state that is over has no snapshot
        self._keep(side, receipt, is_right=is_right)
        if not is_right:
            raise VerificationError(f"receipt: expected the state after {standing.sequence} moves, got another")

    def _keep(self, signer: Side, found: SignedStanding, *, is_right: bool = True) -> None:
        """Keep a side's signed standing, and the evidence if it has signed another one of the same number."""
        if is_right:
            self._signed[signer][found.sequence] = found
        seen = self._seen[signer].setdefault(found.sequence, found)
        if seen.snapshot != found.snapshot:
            self.fork = self.fork or Fork.of(seen, found)

    def _look_for_fork(self, message: Message, signature: bytes) -> None:
        before = self._states[message.sequence]
        with suppress(VerificationError):
            after = _after(before, message.move)
            if after is not None and not after.is_over:
                standing = Standing.of(after)
                keys.verify(standing.digest(self.domain), signature, self._parties[before.mover])
                self._keep(before.mover, SignedStanding.under(standing, signature), is_right=False)


def leads_on(state: GameState, move: Move) -> GameState | None:
    """The state that a message with this move would lead to; None if it is illegal there, or would end the game."""
    with suppress(IllegalMove):
        after = _after(state, move)
        return None if after is None or after.is_over else after
    return None


def _after(state: GameState, move: Move) -> GameState | None:
    """The state after a move, at an instant at which it costs nothing. None for those that end every game."""
    return None if move.KIND in (Phase.PROVE, Phase.OVER) else rules.apply(state, move, max(state.moved, state.last))
