"""The referee's contract on an embedded chain, and what it is asked, made from the same moves as Python's."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

from web3 import EthereumTesterProvider, Web3

from protocol.chain.artifacts import REFEREE, load_artifact
from protocol.chain.errors import Reverted
from protocol.chain.node import node_errors
from protocol.moves import Prove, StateWitness, TensorWitness
from protocol.program import instruction_digest

ZERO: Final = bytes(32)


class Target(IntEnum):
    """`IReferee.Target`."""

    VALUE = 0
    ELEMENT = 1
    TERMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """`IReferee.Context`, field by field in its order."""

    target: Target
    depth: int
    position: int = 0
    element: int = 0
    terms_leaf: int = 0
    step: int = 1
    state_count: int = 0
    data_count: int = 0
    instruction_leaf: bytes = ZERO
    program_root: bytes = ZERO
    body_root: bytes = ZERO
    data_root: bytes = ZERO
    record_root: bytes = ZERO
    record_depth: int = 0
    record_position: int = 0
    accumulator_root: bytes = ZERO

    @property
    def values(self) -> tuple[Any, ...]:
        """As the argument of a call."""
        return tuple(int(v) if isinstance(v, int) else v for v in (getattr(self, name) for name in self.__slots__))


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

    def describe(self, instruction: bytes) -> tuple[Any, ...]:
        """`IReferee.Description`. Raises `RefusedOnChain`."""
        return tuple(self._call(self.functions.describe(instruction)))

    def finish(self, instruction: bytes, accumulator: bytes) -> tuple[bool, bytes, int]:
        """Whether canonical, leaf, bits. Raises `RefusedOnChain`."""
        canonical, leaf, bits = self._call(self.functions.finish(instruction, accumulator))
        return bool(canonical), bytes(leaf), int(bits)

    def output_id(self, instruction: bytes, root: bytes) -> bytes:
        """Tensor id of the output."""
        return bytes(self._call(self.functions.outputId(instruction, root)))


@cache
def deploy() -> SolidityReferee:
    """The contract from the checked-in artifact, on a fresh in-process chain."""
    artifact = load_artifact(REFEREE)
    web3 = Web3(EthereumTesterProvider())
    factory = web3.eth.contract(abi=list(artifact.abi), bytecode=artifact.bytecode)
    receipt = web3.eth.wait_for_transaction_receipt(factory.constructor().transact())
    contract = web3.eth.contract(address=receipt["contractAddress"], abi=list(artifact.abi))
    errors = frozenset(str(entry["name"]) for entry in artifact.abi if entry["type"] == "error")
    return SolidityReferee(contract.functions, errors)


def instruction_leaf(instruction: bytes) -> bytes:
    """What the game holds of the disputed instruction."""
    return instruction_digest(instruction)


def proof_argument(move: Prove) -> tuple[Any, ...]:
    """`IReferee.Proof`."""
    tensors = [(t.value, t.dtype, list(t.dims), t.chunk_root, list(t.siblings)) for t in move.tensors]
    chunks = [(c.tensor, c.chunk, c.data, list(c.siblings)) for c in move.chunks]
    witness: tuple[Any, ...] = (0, ZERO, 0, ZERO, [], ZERO, [])
    match move.witness:
        case TensorWitness() as w:
            witness = (0, ZERO, 0, ZERO, [], w.tensor_id, list(w.siblings))
        case StateWitness() as w:
            record = (w.step, w.state_root, w.loss_bits, w.log_root, list(w.record_siblings))
            witness = (*record, w.tensor_id, list(w.siblings))
    return (move.instruction, move.previous, list(move.siblings), tensors, chunks, witness)
