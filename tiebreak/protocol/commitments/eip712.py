"""EIP-712 typed data (SPEC section 8): the digests that keys sign and that a contract checks with `ecrecover`.

Only what the protocol needs is implemented: static structs, whose `encodeData` is one 32-byte word per field. Every
struct type that is ever signed is listed here.

    domain separator = keccak(typeHash(EIP712Domain) || words of name, version, chainId, verifyingContract)
    hashStruct(s)    = keccak(typeHash(s) || words of the fields)
    digest           = keccak(0x19 0x01 || domain separator || hashStruct)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NewType

from eth_hash.auto import keccak

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.tags import Digest

Address = NewType("Address", bytes)
"""20 bytes: the address of an Ethereum account or contract."""

DOMAIN_NAME: Final = "Tiebreak"
DOMAIN_VERSION: Final = "1"

_DOMAIN_TYPE: Final = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


@dataclass(frozen=True, slots=True)
class StructType:
    """A static EIP-712 struct: its name, and a (Solidity type, field name) pair for each field in order."""

    name: str
    fields: tuple[tuple[str, str], ...]

    @property
    def encoded(self) -> str:
        """EIP-712 `encodeType`: Name(type name,type name,...)."""
        return f"{self.name}({','.join(f'{kind} {name}' for kind, name in self.fields)})"


JOB_TYPE: Final = StructType(
    "Job",
    (
        ("address", "client"),
        ("address", "trainer"),
        ("bytes32", "programRoot"),
        ("uint32", "bodyCount"),
        ("uint32", "stateCount"),
        ("uint32", "dataCount"),
        ("bytes32", "initialStateRoot"),
        ("bytes32", "dataRoot"),
        ("uint64", "steps"),
        ("uint64", "checkpointInterval"),
        ("uint8", "policy"),
        ("uint8", "precision"),
        ("uint32", "tolerances"),
        ("uint256", "reward"),
        ("uint256", "trainerStake"),
        ("uint256", "challengerStake"),
        ("uint64", "challengeWindow"),
        ("uint64", "clock"),
        ("uint64", "replayTime"),
        ("uint8", "descentLevels"),
        ("uint256", "nonce"),
    ),
)
HEAD_TYPE: Final = StructType("Head", (("bytes32", "jobId"), ("uint64", "count"), ("bytes32", "runRoot")))
MESSAGE_TYPE: Final = StructType("Message", (("bytes32", "messageHash"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Where signatures are valid: a chain (its EIP-155 id) and a contract on it. Both are zero off chain."""

    chain_id: int
    contract: Address

    def __post_init__(self) -> None:
        check_uint("chain id", self.chain_id, 256)
        check_bytes("verifying contract", self.contract, 20)


OFF_CHAIN: Final = Domain(chain_id=0, contract=Address(bytes(20)))
"""The domain of jobs that are not settled by a contract."""


def _word(kind: str, name: str, value: int | bytes) -> bytes:
    """One 32-byte word of `encodeData`."""
    if kind.startswith("uint"):
        return check_uint(name, value, int(kind[4:])).to_bytes(32, "big")
    if kind == "address":
        return check_bytes(name, value, 20).rjust(32, b"\0")
    return check_bytes(name, value, 32)


@cache
def type_hash(encoded_type: str) -> Digest:
    """keccak-256 of an `encodeType` string."""
    return Digest(keccak(encoded_type.encode("ascii")))


def hash_struct(struct: StructType, values: Sequence[int | bytes]) -> Digest:
    """EIP-712 `hashStruct`. Values are in field order. Raises `EncodingError` for one that does not fit its type."""
    words = [_word(kind, name, value) for (kind, name), value in zip(struct.fields, values, strict=True)]
    return Digest(keccak(type_hash(struct.encoded) + b"".join(words)))


@cache
def domain_separator(domain: Domain) -> Digest:
    """EIP-712 domain separator of this protocol for a chain and contract."""
    words = (
        type_hash(_DOMAIN_TYPE),
        keccak(DOMAIN_NAME.encode("ascii")),
        keccak(DOMAIN_VERSION.encode("ascii")),
        domain.chain_id.to_bytes(32, "big"),
        domain.contract.rjust(32, b"\0"),
    )
    return Digest(keccak(b"".join(words)))


def typed_digest(domain: Domain, struct_hash: bytes) -> Digest:
    """The EIP-712 digest to sign for a struct hash under a domain."""
    return Digest(keccak(b"\x19\x01" + domain_separator(domain) + check_bytes("struct hash", struct_hash, 32)))
