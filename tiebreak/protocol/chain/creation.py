"""Creation code of the contracts, each made with the address of the one below it, and what creating them costs."""

from typing import Final

from eth_abi.abi import encode

from tiebreak.protocol.chain.artifacts import load_artifact
from tiebreak.protocol.commitments.eip712 import Address

CONSTRUCTOR_GAS: Final = 20_000
"""More than any of these constructors uses: they read one account's code size and return."""


def creation_code(name: str, argument: Address | None = None) -> bytes:
    """What a transaction without a receiver carries; the argument is the constructor's, if it takes one."""
    code = load_artifact(name).bytecode
    return code if argument is None else code + encode(["address"], [argument])


def creation_gas(name: str) -> int:
    """An upper bound: base cost, calldata (EIP-7623), initcode words (EIP-3860), code deposit, constructor."""
    artifact = load_artifact(name)
    zeros = artifact.bytecode.count(0)
    tokens = zeros + 4 * (len(artifact.bytecode) - zeros + 32)
    words = -(-len(artifact.bytecode) // 32) + 1
    executed = 32_000 + 4 * tokens + 2 * words + 200 * artifact.code_bytes + CONSTRUCTOR_GAS
    return 21_000 + max(executed, 10 * tokens)
