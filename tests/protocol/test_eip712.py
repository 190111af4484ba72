"""Typed-data digests against `eth_account`, which implements EIP-712 on its own."""

from pathlib import Path
from typing import Any

import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.protocol.commitments.eip712 import (
    HEAD_TYPE,
    JOB_TYPE,
    MESSAGE_TYPE,
    OFF_CHAIN,
    Address,
    Domain,
    StructType,
    domain_separator,
    hash_struct,
    typed_digest,
)
from tiebreak.protocol.errors import EncodingError

STRUCTS = (JOB_TYPE, HEAD_TYPE, MESSAGE_TYPE)


def values_of(struct: StructType) -> st.SearchStrategy[tuple[int | bytes, ...]]:
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "address": st.binary(min_size=20, max_size=20),
        "bytes32": st.binary(min_size=32, max_size=32),
        **{f"uint{bits}": st.integers(0, 2**bits - 1) for bits in (8, 32, 64, 256)},
    }
    return st.tuples(*(by_kind[kind] for kind, _ in struct.fields))


domains = st.builds(
    Domain, chain_id=st.integers(0, 2**256 - 1), contract=st.binary(min_size=20, max_size=20).map(Address)
)


def other_digest(domain: Domain, struct: StructType, values: tuple[int | bytes, ...]) -> bytes:
    """By eth_account."""
    message = {
        name: "0x" + value.hex() if isinstance(value, bytes) else value
        for (_, name), value in zip(struct.fields, values, strict=True)
    }
    signable = encode_typed_data(
        full_message={
            "types": {
                "EIP712Domain": [
                    {"name": "name", "type": "string"},
                    {"name": "version", "type": "string"},
                    {"name": "chainId", "type": "uint256"},
                    {"name": "verifyingContract", "type": "address"},
                ],
                struct.name: [{"name": name, "type": kind} for kind, name in struct.fields],
            },
            "primaryType": struct.name,
            "domain": {
                "name": "Tiebreak",
                "version": "1",
                "chainId": domain.chain_id,
                "verifyingContract": "0x" + domain.contract.hex(),
            },
            "message": message,
        }
    )
    assert signable.header == domain_separator(domain)
    assert signable.body == hash_struct(struct, values)
    return keccak(b"\x19\x01" + signable.header + signable.body)


@given(st.data(), domains, st.sampled_from(STRUCTS))
def test_digests_are_those_of_eth_account(data: st.DataObject, domain: Domain, struct: StructType) -> None:
    values = data.draw(values_of(struct))
    assert typed_digest(domain, hash_struct(struct, values)) == other_digest(domain, struct, values)


def test_type_strings_are_those_of_the_specification() -> None:
    assert HEAD_TYPE.encoded == "Head(bytes32 jobId,uint64 count,bytes32 runRoot)"
    assert MESSAGE_TYPE.encoded == "Message(bytes32 messageHash)"
    written = " ".join(Path("docs/SPEC.md").read_text().split())
    assert JOB_TYPE.encoded in written.replace(", ", ",")
    assert JOB_TYPE.encoded.startswith("Job(address client,address trainer,bytes32 programRoot,uint32 bodyCount,")
    assert JOB_TYPE.encoded.endswith("uint64 clock,uint64 replayTime,uint8 descentLevels,uint256 nonce)")
    assert len(JOB_TYPE.fields) == 21


@pytest.mark.parametrize("value", [-1, 1 << 64, b"\0", True, 1.0, None])
def test_a_value_that_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="count: expected an unsigned 64-bit integer"):
        hash_struct(HEAD_TYPE, (bytes(32), value, bytes(32)))


@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), 0, bytearray(32)])
def test_bytes_that_do_not_fit_are_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="expected 32 bytes"):
        hash_struct(MESSAGE_TYPE, (value,))
    with pytest.raises(EncodingError, match="struct hash: expected 32 bytes"):
        typed_digest(OFF_CHAIN, value)


def test_a_domain_checks_its_fields() -> None:
    with pytest.raises(EncodingError, match="chain id"):
        Domain(chain_id=-1, contract=Address(bytes(20)))
    with pytest.raises(EncodingError, match="verifying contract: expected 20 bytes, got 19"):
        Domain(chain_id=1, contract=Address(bytes(19)))
