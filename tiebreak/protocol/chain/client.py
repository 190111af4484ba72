"""The contracts on one chain: deploying them, sending them transactions, and reading their records and events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak
from rlp import encode

from tiebreak.protocol.chain import abi, artifacts
from tiebreak.protocol.chain.artifacts import BOARD, CONTRACTS, GAMES, REFEREE, TRANSCENDENTALS
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.chain.errors import ChainError, ContractMismatch, NodeError
from tiebreak.protocol.chain.gas import first_bid, gas_limit
from tiebreak.protocol.chain.node import Node
from tiebreak.protocol.chain.outbox import Outbox, Sent
from tiebreak.protocol.chain.records import Event, GameRecord, JobRecord, Receipt
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties.transactions import Challenge
from tiebreak.protocol.tags import Digest

RECEIPT_SECONDS: Final = 180
"""The time that `send` waits for a transaction to be mined."""
DISPLACEMENTS: Final = 8
"""The number of times that `send` tries a call again because another transaction of the account has its nonce."""
NO_CAP: Final = 1 << 128


@dataclass(frozen=True, slots=True)
class Deployment:
    """The addresses of the contracts."""

    transcendentals: Address
    referee: Address
    games: Address
    board: Address
    """The verifying contract of what jobs and heads sign."""

    def named(self) -> dict[str, Address]:
        """The addresses by contract name, in order of deployment."""
        return dict(zip(CONTRACTS, (self.transcendentals, self.referee, self.games, self.board), strict=True))


@dataclass(frozen=True, slots=True)
class Creation:
    """A contract that was deployed."""

    name: str
    address: Address
    transaction: bytes
    block: int
    gas_used: int


class Chain:
    """The board on one chain. Each transaction is signed by a key, tried first, then sent and waited for.

    Every method that sends raises `Reverted` (with the contract's own error), `InsufficientFunds` or `NodeError`.
    """

    def __init__(self, node: Node) -> None:
        """`node` answers for the chain; callers that follow the chain block by block ask it themselves."""
        self.node = node
        self._deployment: Deployment | None = None
        self._outboxes: dict[Address, Outbox] = {}

    @classmethod
    def connect(cls, endpoint: str) -> Self:
        """Connect to a node (`Node.connect`). Raises `NodeError` if there is no answer."""
        return cls(Node.connect(endpoint))

    def through(self, node: Node) -> "Chain":
        """The same contracts, by way of another node."""
        found = Chain(node)
        found._deployment = self._deployment
        return found

    # ------------------------------------------------------------------ contracts

    def deploy(self, signer: PrivateKey, on_contract: Callable[[Creation], None] = lambda _: None) -> Deployment:
        """Deploy the contracts and attach to them. Calls `on_contract` after each.

        Raises `InsufficientFunds` before anything is sent if the account cannot pay for all of them.
        """
        gas = sum(map(artifacts.creation_gas, CONTRACTS))
        self.node.require(signer.address, gas * first_bid(self.node.market(), NO_CAP).most)
        made: list[Address] = []
        # The games get the address of the board, which the transaction after theirs creates.
        nonce = self.node.count(signer.address) + len(CONTRACTS) - 1
        number = nonce.to_bytes(-(-nonce.bit_length() // 8), "big")
        board = Address(bytes(keccak(encode([signer.address, number])))[12:])
        for name in CONTRACTS:
            code = artifacts.creation_code(name, *made[-1:], *([board] if name == GAMES else []))
            creation = self._create(signer, name, code)
            made.append(creation.address)
            on_contract(creation)
        if made[-1] != board:
            raise ContractMismatch(
                BOARD, made[-1], "another address than its games know, so use this account for one thing"
            )
        self._deployment = Deployment(*made)
        return self._deployment

    def attach(self, board: Address) -> Deployment:
        """Use an existing board. Raises `ContractMismatch` unless it and the contracts it uses are of this version."""
        games = self._constant(BOARD, board, Call("GAMES"))
        referee = self._constant(GAMES, games, Call("REFEREE"))
        transcendentals = self._constant(REFEREE, referee, Call("TRANSCENDENTALS"))
        # Running creation code in a call, without sending it, returns the code that must be deployed, constants
        # included.
        self._require_code(TRANSCENDENTALS, transcendentals, artifacts.creation_code(TRANSCENDENTALS))
        self._require_code(REFEREE, referee, artifacts.creation_code(REFEREE, transcendentals))
        # The games' code has the address of the one board that may start them.
        self._require_code(GAMES, games, artifacts.creation_code(GAMES, referee, board))
        self._require_code(BOARD, board, artifacts.creation_code(BOARD, games))
        self._deployment = Deployment(transcendentals, referee, games, board)
        return self._deployment

    @property
    def chain_id(self) -> int:
        return self.node.chain_id

    def entropy(self) -> bytes:
        """The `prevrandao` that a transaction in the newest block would see. A header may have another one."""
        return self.node.call(None, bytes.fromhex("44 6000 52 6020 6000 f3"))  # stores it, and returns the word

    @property
    def deployment(self) -> Deployment:
        """The contracts in use. Raises `StateError` before `deploy` or `attach`."""
        if self._deployment is None:
            raise StateError("expected a deployed board; call deploy() or attach() first")
        return self._deployment

    @property
    def domain(self) -> Domain:
        """The EIP-712 domain of jobs and heads on this board."""
        return Domain(chain_id=self.node.chain_id, contract=self.deployment.board)

    # ------------------------------------------------------------------ transactions

    def send(self, signer: PrivateKey, call: Call) -> Receipt:
        """Make a call, such as that of a transaction (`Call.of`)."""
        data, to = call.data, self.deployment.named()[call.contract]
        receipt = self._transact(signer, to, data, call.value, gas_limit(call))
        block = int(receipt["blockNumber"])
        return Receipt(
            transaction=bytes(receipt["transactionHash"]),
            block=block,
            timestamp=self.node.timestamp(block),
            gas_used=int(receipt["gasUsed"]),
            calldata_bytes=len(data),
            events=tuple(event for log in receipt["logs"] if (event := self.event_in(log)) is not None),
        )

    def outbox(self, signer: PrivateKey, **settings: Any) -> Outbox:
        """The outbox that gets an account's transactions mined. The settings are those of `Outbox`, at its first use.

        A driver that must not wait posts and looks there itself; `send` and `play` do both, and wait.
        """
        if signer.address not in self._outboxes:
            self._outboxes[signer.address] = Outbox(self.node, signer, **settings)
        elif settings:
            raise StateError("expected the settings of an outbox before its first use, got them after")
        return self._outboxes[signer.address]

    def post(self, signer: PrivateKey, call: Call, *, deadline: int = 0, name: bytes = b"") -> Sent:
        """Try a call and send it, without waiting for a block. See `Outbox.post`."""
        data, to = call.data, self.deployment.named()[call.contract]
        gas = self.node.try_out(signer.address, to, data, call.value, gas_limit(call))
        return self.outbox(signer).post(to, data, call.value, gas=gas, deadline=deadline, name=name)

    def _transact(
        self, signer: PrivateKey, to: Address | None, data: bytes, value: int, limit: int
    ) -> Mapping[str, Any]:
        """Try a transaction, send it and wait for its receipt."""
        outbox = self.outbox(signer)
        for _ in range(DISPLACEMENTS):
            self.node.require(signer.address, value)
            sent = outbox.post(to, data, value, gas=self.node.try_out(signer.address, to, data, value, limit))
            outbox.wait(sent, RECEIPT_SECONDS)
            if sent.receipt is None:
                continue  # another process has used its number
            if sent.receipt["status"] != 1:
                # The chain moved on between trying and mining, so trying again shows what changed.
                self.node.try_out(signer.address, to, data, value, limit)
                raise abi.decode_revert(b"", "the transaction failed though it had been tried and would succeed now")
            return sent.receipt
        raise NodeError(f"expected a number of its own for a transaction, got one in use {DISPLACEMENTS} times")

    def challenge(self, challenger: PrivateKey, head: SignedHead, nonce: int) -> tuple[Digest, Receipt]:
        """Start a game against a head and pay the challenger's stake. Returns the game's id and the receipt."""
        state = self.job_state(head.head.job_id)
        stake = state.challenger_stake << state.open_games
        receipt = self.send(challenger, Call.of(Challenge(head=head, nonce=nonce), stake))
        return Digest(receipt.event("GameStarted").values["gameId"]), receipt

    def play(self, mover: PrivateKey, state: GameState, move: Move) -> Receipt:
        """Make a move. `state` is the game before it, as the mover knows it; a proof shows again what was opened."""
        return self.send(mover, move_call(state, move))

    def pass_until(self, instant: int) -> None:
        """Let time pass to an instant, unless it has come. Raises `NodeError` for all but development nodes."""
        if instant > self.now():
            self.node.mine_at(instant)

    # ------------------------------------------------------------------ reading

    def job_state(self, job_id: Digest) -> JobRecord:
        """The board's record of a job. Its status is NONE if there is no such job."""
        found: JobRecord = self._read(Call("job", (job_id,)))
        return found

    def game_state(self, game_id: Digest) -> GameRecord:
        """The board's record of a game. Its phase is 0 if there is no such game."""
        found: GameRecord = self._read(Call("game", (game_id,)))
        return found

    def logs(self, first_block: int, last_block: int) -> Sequence[Mapping[str, Any]]:
        """The logs of the contracts in these blocks, as the node has them."""
        return self.node.logs((self.deployment.board, self.deployment.games), [], first_block, last_block)

    def events(self, game_id: Digest | None = None, first_block: int = 0) -> list[Event]:
        """The events of board and games, oldest first; only those of one game if its id is given."""
        topics = [] if game_id is None else [None, game_id]
        logs = self.node.logs((self.deployment.board, self.deployment.games), topics, first_block)
        return [event for log in logs if (event := self.event_in(log)) is not None]

    def credit(self, account: Address) -> int:
        """Wei that an account can withdraw."""
        return int(self._read(Call("credit", (account,))))

    def balance(self, account: Address) -> int:
        return self.node.balance(account)

    def now(self) -> int:
        return self.node.timestamp()

    # ------------------------------------------------------------------ inner workings

    def _read(self, call: Call, contract: Address | None = None) -> Any:
        data = self.node.call(self.deployment.named()[call.contract] if contract is None else contract, call.data)
        try:
            return call.result(data)
        except DecodingError as error:
            raise NodeError(f"expected the result of {call.kind}, got {len(data)} bytes that are none") from error

    def _constant(self, name: str, contract: Address, call: Call) -> Address:
        """The address of another contract, read from a constant of this one."""
        self._require_code(name, contract, None)
        try:
            found: Address = self._read(call, contract)
        except ChainError as error:
            raise ContractMismatch(name, contract, f"a contract without {call.kind}") from error
        return found

    def _create(self, signer: PrivateKey, name: str, code: bytes) -> Creation:
        receipt = self._transact(signer, None, code, 0, artifacts.creation_gas(name))
        if (created := receipt["contractAddress"]) is None:
            raise NodeError("expected the address of a new contract, got none")
        return Creation(
            name=name,
            address=Address(bytes.fromhex(created.removeprefix("0x"))),
            transaction=bytes(receipt["transactionHash"]),
            block=int(receipt["blockNumber"]),
            gas_used=int(receipt["gasUsed"]),
        )

    def _require_code(self, name: str, address: Address, creation: bytes | None) -> None:
        if not (found := self.node.code(address)):
            raise ContractMismatch(name, address, "an account without code")
        if creation is not None and found != self.node.call(None, creation):
            raise ContractMismatch(name, address, "another contract or version")

    def event_in(self, log: Mapping[str, Any]) -> Event | None:
        """The event in a log; None if it is not one of these contracts'. Raises `NodeError` for one that is broken."""
        try:
            found = abi.read_log([bytes(topic) for topic in log["topics"]], bytes(log["data"]))
        except DecodingError as error:
            raise NodeError(f"expected an event of the board, got a log that is none: {error}") from error
        if found is None:
            return None
        return Event(*found, block=int(log["blockNumber"]), transaction=bytes(log["transactionHash"]))
