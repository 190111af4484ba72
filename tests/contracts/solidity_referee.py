"""The referee's contract on an embedded chain, and what it is asked, made from the same moves as Python's."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from web3 import EthereumTesterProvider, Web3

from tests.contracts.context import ZERO, Context
from tiebreak.protocol.chain.artifacts import REFEREE, load_artifact
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.chain.node import node_errors
from tiebreak.protocol.game.moves import Prove, StateWitness, TensorWitness


class RefusedOnChain(Exception):
    """The contract reverted with one of its own errors, whose name this carries."""


@dataclass(frozen=True, slots=True)
class SolidityReferee:
    """Calls of the deployed contract; a revert that is none of its errors (a panic, say) is no refusal but a bug."""

    functions: Any
    errors: frozenset[str]

    def _call(self, function: Any) -> Any:
        try:
            with node_errors():
                return function.call()
        except Reverted as error:
            if error.name not in self.errors:
                raise
            raise RefusedOnChain(error.name) from None

    def judge(self, context: Context, move: Prove) -> bytes:
        """The right leaf or bits, 32 bytes. Raises `RefusedOnChain`."""
        return bytes(self._call(self.functions.judge(context.values, proof_argument(move))))

    def describe(self, instruction: bytes, chunk_root: bytes) -> tuple[Any, ...]:
        """`IReferee.Description`. Raises `RefusedOnChain`."""
        return tuple(self._call(self.functions.describe(instruction, chunk_root)))

    def finish(self, kind: int, rounding: int, accumulator: bytes) -> tuple[bool, bytes, int]:
        """Whether canonical, leaf, bits. Raises `RefusedOnChain`."""
        canonical, leaf, bits = self._call(self.functions.finish(kind, rounding, accumulator))
        return bool(canonical), bytes(leaf), int(bits)


@cache
def deploy() -> SolidityReferee:
    """The contracts from the checked-in artifacts, on a fresh in-process chain."""
    web3 = Web3(EthereumTesterProvider())
    transcendentals = _deployed(web3, "Transcendentals")
    contract = _deployed(web3, REFEREE, transcendentals.address)
    errors = frozenset(str(entry["name"]) for entry in contract.abi if entry["type"] == "error")
    return SolidityReferee(contract.functions, errors)


def _deployed(web3: Web3, name: str, *arguments: Any) -> Any:
    artifact = load_artifact(name)
    factory = web3.eth.contract(abi=list(artifact.abi), bytecode=artifact.bytecode)
    receipt = web3.eth.wait_for_transaction_receipt(factory.constructor(*arguments).transact())
    return web3.eth.contract(address=receipt["contractAddress"], abi=list(artifact.abi))


def proof_argument(move: Prove) -> tuple[Any, ...]:
    """`IReferee.Proof`."""
    tensors = [(t.value, t.dtype, list(t.dims), t.chunk_root, list(t.siblings)) for t in move.tensors]
    chunks = [(c.tensor, c.chunk_index, c.data, list(c.siblings)) for c in move.chunks]
    witness: tuple[Any, ...] = (0, ZERO, 0, ZERO, [], ZERO, [])
    match move.witness:
        case TensorWitness() as w:
            witness = (0, ZERO, 0, ZERO, [], w.tensor_id, list(w.siblings))
        case StateWitness() as w:
            record = (w.step, w.state_root, w.loss_bits, w.log_root, list(w.record_siblings))
            witness = (*record, w.tensor_id, list(w.siblings))
    return (move.instruction, move.previous, list(move.siblings), tensors, chunks, witness)
