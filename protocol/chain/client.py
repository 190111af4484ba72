"""The contracts as typed methods: one per function of `IJobBoard` and `IGame`."""

from dataclasses import dataclass
from typing import Any

from eth_abi.abi import encode
from eth_abi.exceptions import DecodingError
from web3 import HTTPProvider, Web3
from web3.types import TxReceipt

from protocol.chain.abi import Interface
from protocol.chain.accounts import Signer
from protocol.chain.artifacts import BOARD, REFEREE, load_artifact
from protocol.chain.calls import head_arguments, job_arguments, move_call, read_move
from protocol.chain.errors import ChainError, ContractMismatch, NodeError
from protocol.chain.node import Node, node_errors
from protocol.chain.records import Event, GameRecord, JobRecord, Receipt, read_state
from protocol.eip712 import Address, Domain
from protocol.errors import StateError
from protocol.job import Job, SignedHead
from protocol.moves import Move
from protocol.tags import Digest

RPC_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the contracts stand."""

    referee: Address
    board: Address


class Chain:
    """The board of one chain. Transactions are signed by a `Signer`, tried first, sent, and waited for.

    Every method that sends raises `Reverted` (with the contract's own error), `InsufficientFunds` or `NodeError`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._interface = Interface(load_artifact(BOARD).abi)
        self._deployment: Deployment | None = None

    @classmethod
    def connect(cls, url: str) -> "Chain":
        """A chain behind a JSON-RPC endpoint. Raises `NodeError` if nobody answers."""
        return cls(Node(Web3(HTTPProvider(url, request_kwargs={"timeout": RPC_SECONDS}))))

    # ------------------------------------------------------------------ contracts

    def deploy(self, signer: Signer) -> Deployment:
        """Put both contracts on the chain and attach to them."""
        referee = self._create(signer, load_artifact(REFEREE).bytecode)
        board = self._create(signer, _board_code(referee))
        self._deployment = Deployment(referee, board)
        return self._deployment

    def attach(self, board: Address) -> Deployment:
        """Use a board that is there. Raises `ContractMismatch` unless it and its referee are of this version."""
        self._require_code(BOARD, board, None)
        try:
            found = self._interface.result("REFEREE", self._node.call(board, self._interface.call("REFEREE")))
        except (DecodingError, ChainError) as error:
            raise ContractMismatch(BOARD, board, "a contract without a referee") from error
        referee = _address(found)
        # Creating the contract in a call, without sending, gives the code that must stand there, constants included.
        self._require_code(REFEREE, referee, load_artifact(REFEREE).bytecode)
        self._require_code(BOARD, board, _board_code(referee))
        self._deployment = Deployment(referee, board)
        return self._deployment

    @property
    def deployment(self) -> Deployment:
        """Raises `StateError` before `deploy` or `attach`."""
        if self._deployment is None:
            raise StateError("expected a deployed board; call deploy() or attach() first")
        return self._deployment

    @property
    def domain(self) -> Domain:
        """The EIP-712 domain of jobs and heads on this board."""
        return Domain(chain_id=self._node.chain_id, contract=self.deployment.board)

    # ------------------------------------------------------------------ jobs

    def create_job(self, client: Signer, job: Job, trainer_signature: bytes) -> Receipt:
        """Offer a job and pay its reward."""
        return self._send(client, "createJob", job_arguments(job), trainer_signature, value=job.reward)

    def cancel_job(self, client: Signer, job_id: Digest) -> Receipt:
        """Take back an offer that was not accepted."""
        return self._send(client, "cancelJob", job_id)

    def accept_job(self, trainer: Signer, job_id: Digest) -> Receipt:
        """Accept an offer and pay the trainer's stake."""
        return self._send(trainer, "acceptJob", job_id, value=self.job_state(job_id).trainer_stake)

    def post_head(self, sender: Signer, head: SignedHead) -> Receipt:
        """Post a head that the trainer signed."""
        return self._send(sender, "postHead", head_arguments(head.head), head.signature)

    def report_equivocation(self, reporter: Signer, first: SignedHead, second: SignedHead) -> Receipt:
        """Report two heads of one count with different roots."""
        heads = (first.head.run_root, first.signature, second.head.run_root, second.signature)
        return self._send(reporter, "reportEquivocation", first.head.job_id, first.head.count, *heads)

    def settle(self, sender: Signer, job_id: Digest) -> Receipt:
        """End a job whose final head stood a whole window."""
        return self._send(sender, "settle", job_id)

    def abandon(self, client: Signer, job_id: Digest) -> Receipt:
        """End a job whose trainer posts no heads."""
        return self._send(client, "abandon", job_id)

    def withdraw(self, owner: Signer, to: Address | None = None) -> Receipt:
        """Pull the owner's whole credit, to itself by default."""
        return self._send(owner, "withdraw", owner.address if to is None else to)

    # ------------------------------------------------------------------ games

    def challenge(self, challenger: Signer, head: SignedHead, nonce: int) -> tuple[Digest, Receipt]:
        """Start a game against a head and pay the challenger's stake; the game's id and the receipt."""
        stake = self.job_state(head.head.job_id).challenger_stake
        arguments = (head_arguments(head.head), head.signature, nonce)
        receipt = self._send(challenger, "challenge", *arguments, value=stake)
        return Digest(bytes(receipt.event("GameStarted").values["gameId"])), receipt

    def play(self, mover: Signer, game_id: Digest, move: Move) -> Receipt:
        """Make a move."""
        function, arguments = move_call(move)
        return self._send(mover, function, game_id, *arguments)

    def timeout(self, sender: Signer, game_id: Digest) -> Receipt:
        """Claim that the side to move has run out of time."""
        return self._send(sender, "timeout", game_id)

    def reclaim(self, sender: Signer, game_id: Digest) -> Receipt:
        """Give back the challenger's stake of a game whose job was slashed meanwhile."""
        return self._send(sender, "reclaim", game_id)

    # ------------------------------------------------------------------ reading

    def job_state(self, job_id: Digest) -> JobRecord:
        """Status NONE if there is no such job."""
        return read_state(JobRecord, self._read("job", job_id))

    def game_state(self, game_id: Digest) -> GameRecord:
        """Phase 0 if there is no such game."""
        return read_state(GameRecord, self._read("game", game_id))

    def mover(self, game_id: Digest) -> Address | None:
        """Whose move it is, None if nobody's."""
        found = _address(self._read("mover", game_id))
        return None if found == bytes(20) else found

    def credit(self, account: Address) -> int:
        """Wei that an account can withdraw."""
        return int(self._read("credit", account))

    def balance(self, account: Address) -> int:
        """Wei that an account has."""
        return self._node.balance(account)

    def now(self) -> int:
        """Time of the newest block, in seconds."""
        return self._node.timestamp()

    def events(self, game_id: Digest | None = None, first_block: int = 0) -> list[Event]:
        """The board's log, oldest first; of one game only, if given."""
        topics: list[Any] = [None, game_id] if game_id is not None else []
        with node_errors():
            logs = self._node.web3.eth.get_logs(
                {
                    "address": Web3.to_checksum_address(self.deployment.board),
                    "fromBlock": first_block,
                    "toBlock": "latest",
                    "topics": topics,
                }
            )
        return [event for log in logs if (event := self._event(log)) is not None]

    def moves(self, game_id: Digest, first_block: int = 0) -> list[Move]:
        """The moves made in a game since a block, read from the transactions' calldata, in order.

        Raises `ChainError` for a move that was not made by a plain transaction to the board; the log (`events`) has
        what it revealed nevertheless.
        """
        order = list(dict.fromkeys(event.transaction for event in self.events(game_id, first_block)))
        calls = [self._call_of(transaction) for transaction in order]
        return [
            read_move(name, arguments)
            for name, arguments in calls
            if name not in ("challenge", "timeout", "reclaim") and arguments["gameId"] == game_id
        ]

    # ------------------------------------------------------------------ inner workings

    def _send(self, signer: Signer, function: str, *arguments: Any, value: int = 0) -> Receipt:
        data = self._interface.call(function, *arguments)
        return self._receipt(self._node.send(signer, self.deployment.board, data, value), len(data))

    def _read(self, function: str, *arguments: Any) -> Any:
        data = self._node.call(self.deployment.board, self._interface.call(function, *arguments))
        try:
            return self._interface.result(function, data)
        except DecodingError as error:
            raise NodeError(f"expected the result of {function}, got {len(data)} bytes that are none") from error

    def _create(self, signer: Signer, code: bytes) -> Address:
        created = self._node.send(signer, None, code)["contractAddress"]
        if created is None:
            raise NodeError("expected the address of a new contract, got none")
        return _address(created)

    def _require_code(self, name: str, address: Address, creation: bytes | None) -> None:
        found = self._node.code(address)
        if not found:
            raise ContractMismatch(name, address, "an account without code")
        if creation is not None and found != self._node.call(None, creation):
            raise ContractMismatch(name, address, "another contract or version")

    def _receipt(self, receipt: TxReceipt, calldata_bytes: int) -> Receipt:
        block = int(receipt["blockNumber"])
        return Receipt(
            transaction=bytes(receipt["transactionHash"]),
            block=block,
            timestamp=self._node.timestamp(block),
            gas_used=int(receipt["gasUsed"]),
            calldata_bytes=calldata_bytes,
            events=tuple(event for log in receipt["logs"] if (event := self._event(log)) is not None),
        )

    def _event(self, log: Any) -> Event | None:
        found = self._interface.read_log([bytes(topic) for topic in log["topics"]], bytes(log["data"]))
        if found is None:
            return None
        return Event(*found, block=int(log["blockNumber"]), transaction=bytes(log["transactionHash"]))

    def _call_of(self, transaction: bytes) -> tuple[str, dict[str, Any]]:
        with node_errors():
            data = bytes(self._node.web3.eth.get_transaction(transaction)["input"])  # type: ignore[arg-type]
        call = self._interface.read_call(data)
        if call is None:
            raise ChainError(f"expected a call of the board in transaction 0x{transaction.hex()}, got another")
        return call


def _board_code(referee: Address) -> bytes:
    """Creation code of the board, its constructor's argument included."""
    return load_artifact(BOARD).bytecode + encode(["address"], [referee])


def _address(text: str) -> Address:
    return Address(bytes.fromhex(text.removeprefix("0x")))
