"""Typed-data digests against `eth_account`, which implements EIP-712 on its own."""

from pathlib import Path

import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records import of_kind
from tiebreak.protocol.commitments import eip712
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.packing import FieldType, Raw

STRUCTS: dict[str, dict[str, FieldType]] = {
    "Job": Job.kinds(),
    "Head": Head.kinds(),
    "Receipt": Head.kinds(),
    "Message": {"message_hash": Raw(32)},
}


domains = st.builds(
    eip712.Domain, chain_id=st.integers(0, 2**256 - 1), contract=st.binary(min_size=20, max_size=20).map(eip712.Address)
)


@given(st.data(), domains, st.sampled_from(sorted(STRUCTS)))
def test_digests_are_those_of_eth_account(data: st.DataObject, domain: eip712.Domain, struct: str) -> None:
    """Of the JSON form too, by which a wallet shows what it signs."""
    values = data.draw(st.tuples(*map(of_kind, STRUCTS[struct].values())))
    typed = eip712.TypedData(domain=domain, name=struct, kinds=STRUCTS[struct], values=values)
    other = encode_typed_data(full_message=typed.to_json())
    assert other.header == eip712.domain_separator(domain)
    assert other.body == eip712.hash_struct(struct, STRUCTS[struct], values)
    assert typed.digest == keccak(b"\x19\x01" + other.header + other.body)


def test_type_strings_are_those_of_the_specification() -> None:
    assert eip712.encode_type("Head", Head.kinds()) == "Head(bytes32 jobId,uint64 count,bytes32 runRoot)"
    assert eip712.encode_type("Receipt", Head.kinds()) == "Receipt(bytes32 jobId,uint64 count,bytes32 runRoot)"
    assert eip712.encode_type("Message", STRUCTS["Message"]) == "Message(bytes32 messageHash)"
    job = eip712.encode_type("Job", Job.kinds())
    written = " ".join(Path("docs/SPEC.md").read_text().split())
    assert job in written.replace(", ", ",")
    assert len(Job.kinds()) == 27


def test_eip712_refuses_values_outside_their_type() -> None:
    for number in (-1, 1 << 64, b"\0", True):
        with pytest.raises(EncodingError, match="count: expected an unsigned 64-bit integer"):
            eip712.hash_struct("Head", Head.kinds(), (bytes(32), number, bytes(32)))
    for data in (bytes(31), bytes(33), 0, bytearray(32)):
        with pytest.raises(EncodingError, match="expected 32 bytes"):
            eip712.hash_struct("Message", STRUCTS["Message"], (data,))  # type: ignore[arg-type]
        with pytest.raises(EncodingError, match="struct hash: expected 32 bytes"):
            eip712.typed_digest(eip712.OFF_CHAIN, data)  # type: ignore[arg-type]


def test_a_domain_checks_its_fields() -> None:
    with pytest.raises(EncodingError, match="chain id"):
        eip712.Domain(chain_id=-1, contract=eip712.Address(bytes(20)))
    with pytest.raises(EncodingError, match="verifying contract: expected 20 bytes, got 19"):
        eip712.Domain(chain_id=1, contract=eip712.Address(bytes(19)))
