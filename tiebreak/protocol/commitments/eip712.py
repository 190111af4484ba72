"""EIP-712 typed data (SPEC section 8): the digests that keys sign and that a contract checks with `ecrecover`.

Only what the protocol needs is implemented: static structs, whose `encodeData` is one 32-byte word per field. The type
of a struct follows from the kinds of its fields (`tiebreak.protocol.packing`). Signed are `Job` and `Head`
(`tiebreak.protocol.commitments.job`) and `Message(bytes32 messageHash)` (`tiebreak.protocol.game.messages`).

    domain separator = keccak(typeHash(EIP712Domain) || words of name, version, chainId, verifyingContract)
    hashStruct(s)    = keccak(typeHash(s) || words of the fields)
    digest           = keccak(0x19 0x01 || domain separator || hashStruct)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NewType

from eth_hash.auto import keccak

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.packing import FieldType, Raw, Uint, camel_case
from tiebreak.protocol.tags import Digest

Address = NewType("Address", bytes)
"""20 bytes: the address of an Ethereum account or contract."""
ADDRESS_BYTES: Final = 20

DOMAIN_NAME: Final = "Tiebreak"
DOMAIN_VERSION: Final = "1"

_DOMAIN_TYPE: Final = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The domain of valid signatures: a chain (its EIP-155 id) and a contract on it. Both are zero off chain."""

    chain_id: int
    contract: Address

    def __post_init__(self) -> None:
        check_uint("chain id", self.chain_id, 256)
        check_bytes("verifying contract", self.contract, 20)


OFF_CHAIN: Final = Domain(chain_id=0, contract=Address(bytes(20)))
"""The domain of jobs that are not settled by a contract."""


@cache
def type_hash(encoded_type: str) -> Digest:
    """keccak-256 of an `encodeType` string."""
    return Digest(keccak(encoded_type.encode("ascii")))


def encode_type(name: str, kinds: Mapping[str, FieldType]) -> str:
    """EIP-712 `encodeType`, `Name(type name,type name,...)`, of a struct with fields of these kinds."""
    return f"{name}({','.join(f'{_solidity(kind)} {camel_case(field)}' for field, kind in kinds.items())})"


def hash_struct(name: str, kinds: Mapping[str, FieldType], values: Sequence[int | bytes]) -> Digest:
    """EIP-712 `hashStruct`. Values are in field order. Raises `EncodingError` for one that does not fit its type."""
    words = []
    for (field, kind), value in zip(kinds.items(), values, strict=True):
        kind.check(field, value)
        words.append(value.to_bytes(32, "big") if isinstance(value, int) else value.rjust(32, b"\0"))
    return Digest(keccak(type_hash(encode_type(name, kinds)) + b"".join(words)))


def _solidity(kind: FieldType) -> str:
    if isinstance(kind, Uint):
        return f"uint{kind.bits}"
    assert isinstance(kind, Raw), "every struct that is signed is static"
    return "address" if kind.length == ADDRESS_BYTES else f"bytes{kind.length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedData:
    """A struct under a domain. A signer that shows its owner what is signed needs it in addition to the digest."""

    domain: Domain
    name: str
    kinds: Mapping[str, FieldType]
    values: Sequence[int | bytes]

    @property
    def digest(self) -> Digest:
        return typed_digest(self.domain, hash_struct(self.name, self.kinds, self.values))

    def to_json(self) -> dict[str, Any]:
        """The argument of `eth_signTypedData_v4`. Numbers are decimal strings, since many readers hold them as FP64."""
        fields = [{"name": camel_case(field), "type": _solidity(kind)} for field, kind in self.kinds.items()]
        kinds = dict(part.split(" ")[::-1] for part in _DOMAIN_TYPE[len("EIP712Domain(") : -1].split(","))
        place = (DOMAIN_NAME, DOMAIN_VERSION, str(self.domain.chain_id), "0x" + self.domain.contract.hex())
        message = (str(value) if isinstance(value, int) else "0x" + value.hex() for value in self.values)
        return {
            "types": {"EIP712Domain": [{"name": n, "type": t} for n, t in kinds.items()], self.name: fields},
            "primaryType": self.name,
            "domain": dict(zip(kinds, place, strict=True)),
            "message": dict(zip(map(camel_case, self.kinds), message, strict=True)),
        }


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
