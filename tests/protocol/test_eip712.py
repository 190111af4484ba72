"""Typed-data digests against `eth_account`, which implements EIP-712 on its own."""

from pathlib import Path
from typing import Any

import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.protocol.commitments.eip712 import (
    OFF_CHAIN,
    Address,
    Domain,
    domain_separator,
    encode_type,
    hash_struct,
    typed_digest,
)
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.packing import Kind, Raw

STRUCTS: dict[str, dict[str, Kind]] = {
    "Job": Job.kinds(),
    "Head": Head.kinds(),
    "Receipt": Head.kinds(),
    "Message": {"message_hash": Raw(32)},
}


def declared(struct: str) -> list[tuple[str, str]]:
    """The (type, name) pairs in the type string of a struct."""
    inside = encode_type(struct, STRUCTS[struct]).removeprefix(f"{struct}(").removesuffix(")")
    return [(kind, name) for kind, _, name in (field.partition(" ") for field in inside.split(","))]


def values_of(struct: str) -> st.SearchStrategy[tuple[int | bytes, ...]]:
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "address": st.binary(min_size=20, max_size=20),
        "bytes32": st.binary(min_size=32, max_size=32),
        **{f"uint{bits}": st.integers(0, 2**bits - 1) for bits in (8, 32, 64, 256)},
    }
    return st.tuples(*(by_kind[kind] for kind, _ in declared(struct)))


domains = st.builds(
    Domain, chain_id=st.integers(0, 2**256 - 1), contract=st.binary(min_size=20, max_size=20).map(Address)
)


def other_digest(domain: Domain, struct: str, values: tuple[int | bytes, ...]) -> bytes:
    """By eth_account."""
    message = {
        name: "0x" + value.hex() if isinstance(value, bytes) else value
        for (_, name), value in zip(declared(struct), values, strict=True)
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
                struct: [{"name": name, "type": kind} for kind, name in declared(struct)],
            },
            "primaryType": struct,
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
    assert signable.body == hash_struct(struct, STRUCTS[struct], values)
    return keccak(b"\x19\x01" + signable.header + signable.body)


@given(st.data(), domains, st.sampled_from(sorted(STRUCTS)))
def test_digests_are_those_of_eth_account(data: st.DataObject, domain: Domain, struct: str) -> None:
    values = data.draw(values_of(struct))
    assert typed_digest(domain, hash_struct(struct, STRUCTS[struct], values)) == other_digest(domain, struct, values)


def test_type_strings_are_those_of_the_specification() -> None:
    assert encode_type("Head", Head.kinds()) == "Head(bytes32 jobId,uint64 count,bytes32 runRoot)"
    assert encode_type("Receipt", Head.kinds()) == "Receipt(bytes32 jobId,uint64 count,bytes32 runRoot)"
    assert encode_type("Message", STRUCTS["Message"]) == "Message(bytes32 messageHash)"
    job = encode_type("Job", Job.kinds())
    written = " ".join(Path("docs/SPEC.md").read_text().split())
    assert job in written.replace(", ", ",")
    assert job.startswith("Job(address client,address trainer,bytes32 programRoot,uint32 bodyCount,")
    assert job.endswith(
        "uint64 clock,uint64 replayTime,"
        "uint64 talkTime,uint64 auditTime,uint64 deadline,"
        "uint8 seats,uint256 seatFee,uint256 seatBond,uint8 descentLevels,uint256 nonce)"
    )
    assert len(declared("Job")) == 27


@pytest.mark.parametrize("value", [-1, 1 << 64, b"\0", True, 1.0, None])
def test_a_value_that_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="count: expected an unsigned 64-bit integer"):
        hash_struct("Head", Head.kinds(), (bytes(32), value, bytes(32)))


@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), 0, bytearray(32)])
def test_bytes_that_do_not_fit_are_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="expected 32 bytes"):
        hash_struct("Message", STRUCTS["Message"], (value,))
    with pytest.raises(EncodingError, match="struct hash: expected 32 bytes"):
        typed_digest(OFF_CHAIN, value)


def test_a_domain_checks_its_fields() -> None:
    with pytest.raises(EncodingError, match="chain id"):
        Domain(chain_id=-1, contract=Address(bytes(20)))
    with pytest.raises(EncodingError, match="verifying contract: expected 20 bytes, got 19"):
        Domain(chain_id=1, contract=Address(bytes(19)))
