"""Keys, signatures and typed data: against `eth_account` and `eth_keys`, and against damage."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_keys.datatypes import Signature
from eth_keys.exceptions import BadSignature
from eth_utils import keccak
from eth_utils.exceptions import ValidationError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.records import of_kind
from tiebreak.protocol.commitments import eip712
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.keys import ORDER, RANDOM_BYTES, PrivateKey, recover, verify
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError
from tiebreak.protocol.packing import FieldType, Raw

KEY = PrivateKey.from_int(0xC0FFEE)
DIGEST = bytes(range(32))
PASSPHRASE = "correct horse"


@settings(max_examples=20)
@given(st.integers(1, ORDER - 1), st.binary(min_size=32, max_size=32))
def test_signatures_are_those_of_eth_account(secret: int, digest: bytes) -> None:
    """Both follow RFC 6979 and take the lower s, so the bytes are equal."""
    key = PrivateKey.from_int(secret)
    other = Account.from_key(secret.to_bytes(32, "big"))
    assert key.address == bytes.fromhex(other.address[2:])
    signature = key.sign(digest)
    assert signature == bytes(other.unsafe_sign_hash(digest).signature)
    assert recover(digest, signature) == key.address
    verify(digest, signature, key.address)


@settings(max_examples=40)
@given(st.integers(0, 65 * 8 - 1))
def test_every_flipped_bit_breaks_a_signature(bit: int) -> None:
    damaged = bytearray(KEY.sign(DIGEST))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SignatureError):
        verify(DIGEST, bytes(damaged), KEY.address)


def test_malformed_signatures_are_named() -> None:
    good = KEY.sign(DIGEST)
    r, s, v = good[:32], int.from_bytes(good[32:64], "big"), good[64:]
    high = r + (ORDER - s).to_bytes(32, "big") + bytes([55 - v[0]])
    for signature, message in (
        (good[:64], "65 bytes, got 64"),
        (good + b"\0", "65 bytes, got 66"),
        (b"", "65 bytes, got 0"),
        (high, "s in the lower half"),
        (good[:32] + bytes(32) + v, "s in the lower half"),
        (bytes(32) + good[32:], "r between 1"),
        (ORDER.to_bytes(32, "big") + good[32:], "r between 1"),
        (good[:64] + b"\0", "v of 27 or 28, got 0"),
        (good[:64] + b"\x1d", "v of 27 or 28, got 29"),
    ):
        with pytest.raises(SignatureError, match=message):
            recover(DIGEST, signature)
    with pytest.raises(SignatureError, match="digest of 32 bytes, got 31"):
        KEY.sign(DIGEST[1:])


def test_signature_whose_r_is_not_on_the_curve_is_refused() -> None:
    """About half of all r are no x coordinate of the curve."""
    found = []
    for r in range(1, 33):
        try:
            recover(DIGEST, r.to_bytes(32, "big") + KEY.sign(DIGEST)[32:])
        except SignatureError as error:
            found.append(str(error))
    assert 4 < len(found) < 28
    assert all("no secp256k1 key" in message for message in found)


def test_private_keys_hide_the_secret_and_need_48_random_bytes() -> None:
    assert repr(KEY) == f"PrivateKey(address=0x{KEY.address.hex()})"
    first, second = (PrivateKey.generate(bytes([n]) * RANDOM_BYTES) for n in (1, 2))
    assert first.address != second.address
    assert PrivateKey.generate(bytes(RANDOM_BYTES)).address == PrivateKey.from_int(1).address
    greatest = PrivateKey.generate((ORDER - 2).to_bytes(RANDOM_BYTES, "big"))
    assert greatest.address == PrivateKey.from_int(ORDER - 1).address
    assert PrivateKey.generate((ORDER - 1).to_bytes(RANDOM_BYTES, "big")).address == PrivateKey.from_int(1).address
    for size in (0, 32, 49):
        with pytest.raises(ConfigurationError, match=f"expected 48 random bytes, got {size}"):
            PrivateKey.generate(bytes(size))
    assert not hasattr(PrivateKey, "from_seed")
    for secret in (0, ORDER, -1):
        with pytest.raises(ConfigurationError, match="between 1 and the order"):
            PrivateKey.from_int(secret)


def test_bad_encodings_and_passphrases_are_named() -> None:
    pem = KEY.to_pem(PASSPHRASE)
    with pytest.raises(ConfigurationError, match="wrong passphrase"):
        PrivateKey.from_pem(pem, "wrong horse")
    for broken in (pem[:-60], pem.replace(b"M", b"N")):
        with pytest.raises(ConfigurationError, match="does not decrypt"):
            PrivateKey.from_pem(broken, PASSPHRASE)
    with pytest.raises(ConfigurationError, match="at least 8 bytes, got 5"):
        KEY.to_pem("short")
    clear = ec.derive_private_key(5, ec.SECP256K1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(ConfigurationError, match="expected an encrypted PKCS#8"):
        PrivateKey.from_pem(clear, PASSPHRASE)
    others = [(ed25519.Ed25519PrivateKey.generate(), "Ed25519"), (ec.generate_private_key(ec.SECP256R1()), "secp256r1")]
    for other, name in others:
        secret = serialization.BestAvailableEncryption(PASSPHRASE.encode())
        pem = other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
        with pytest.raises(ConfigurationError, match=f"expected a secp256k1 key, got .*{name}"):
            PrivateKey.from_pem(pem, PASSPHRASE)


def _by_eth_keys(digest: bytes, signature: bytes) -> bytes | None:
    try:
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
        key = Signature(vrs=(signature[64] - 27, r, s)).recover_public_key_from_msg_hash(digest)
        return key.to_canonical_address()
    except (BadSignature, ValidationError):
        return None


def test_a_signature_whose_key_would_be_infinity_is_refused() -> None:
    """s R = z G: with R = 5 G and z = 5 s."""
    point = ec.derive_private_key(5, ec.SECP256K1()).public_key().public_numbers()
    signature = point.x.to_bytes(32, "big") + (77).to_bytes(32, "big") + bytes([27 + point.y % 2])
    digest = (5 * 77).to_bytes(32, "big")
    assert _by_eth_keys(digest, signature) is None
    with pytest.raises(SignatureError):
        recover(digest, signature)


_EDGES = [0, 1, 2, ORDER // 2, ORDER // 2 + 1, ORDER - 1, ORDER, 2**256 - 1]
_SCALARS = st.one_of(st.sampled_from(_EDGES), st.integers(0, 2**256 - 1))


@settings(max_examples=100)
@given(_SCALARS, _SCALARS, _SCALARS, st.integers(26, 29), st.booleans())
def test_key_recovery_matches_eth_keys_on_arbitrary_numbers(z: int, r: int, s: int, v: int, is_signed: bool) -> None:
    """Anybody may send any numbers, and real signatures with s, or the digest, from elsewhere."""
    digest = z.to_bytes(32, "big")
    signature = (KEY.sign(digest)[:32] if is_signed else r.to_bytes(32, "big")) + s.to_bytes(32, "big") + bytes([v])
    is_formed = 1 <= int.from_bytes(signature[:32], "big") < ORDER and 1 <= s <= ORDER // 2 and v in (27, 28)
    expected = _by_eth_keys(digest, signature) if is_formed else None
    if expected is None:
        with pytest.raises(SignatureError):
            recover(digest, signature)
    else:
        assert recover(digest, signature) == expected


# ---------------------------------------------------------------- typed data

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
