"""Keys in our own files, in Ethereum keystores, and with signers behind a socket."""

import json
import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils import keccak
from securesystemslib.dsse import Envelope as OtherEnvelope

from tests.tiebreak.parties import Parties
from tiebreak.api.signing import keys, signers
from tiebreak.api.signing.keys import load_key, new_key, read_keystore, save_key
from tiebreak.api.signing.signers import SignerKey
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain.node import sign_transaction
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain
from tiebreak.protocol.commitments.job import Head, LogReceipt, SignedHead
from tiebreak.protocol.commitments.keys import ORDER, PrivateKey
from tiebreak.protocol.commitments.seats import salt_of
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.tags import Digest

KEY = PrivateKey.from_int(0xC0FFEE)
PASSPHRASE = "correct horse battery"
DIGEST = bytes(range(32))
HEAD = Head(job_id=Digest(bytes(31) + b"\x01"), count=3, run_root=Digest(bytes(range(32))))
DOMAIN = Domain(chain_id=1 << 70, contract=Address(b"\xab" * 20))


# ---------------------------------------------------------------- files


def test_a_saved_key_is_encrypted_private_never_overwritten_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    save_key(KEY, path, PASSPHRASE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="already exists"):
        save_key(new_key(), path, PASSPHRASE)
    assert path.read_bytes() == before
    assert load_key(path, PASSPHRASE).sign(DIGEST) == KEY.sign(DIGEST)
    assert list(tmp_path.iterdir()) == [path]
    assert new_key().address != new_key().address


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o610])
def test_a_key_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    save_key(KEY, path, PASSPHRASE)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"expected mode 0600, got {mode:04o}"):
        load_key(path, PASSPHRASE)


def test_a_key_file_that_is_not_there_or_does_not_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(ConfigurationError, match="cannot read key file"):
        load_key(path, PASSPHRASE)
    save_key(KEY, path, PASSPHRASE)
    with pytest.raises(ConfigurationError, match="wrong passphrase"):
        load_key(path, "wrong horse")


# ---------------------------------------------------------------- keystores


def encrypted(kdf: str = "scrypt", work: int = 16) -> dict[str, Any]:
    made: dict[str, Any] = Account.encrypt(0xC0FFEE.to_bytes(32, "big"), PASSPHRASE, kdf=kdf, iterations=work)
    return made


def write(folder: Path, document: dict[str, Any], mode: int = 0o600) -> Path:
    path = folder / "UTC--keystore"
    path.write_text(json.dumps(document))
    path.chmod(mode)
    return path


@pytest.mark.parametrize("kdf", ["scrypt", "pbkdf2"])
def test_a_keystore_of_another_implementation_is_read(tmp_path: Path, kdf: str) -> None:
    found = load_key(write(tmp_path, encrypted(kdf)), PASSPHRASE)
    assert found.sign(DIGEST) == KEY.sign(DIGEST)
    with pytest.raises(ConfigurationError, match="wrong passphrase or damaged"):
        load_key(write(tmp_path, encrypted(kdf)), "another passphrase")
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_key(write(tmp_path, encrypted(kdf), 0o644), PASSPHRASE)


def test_keystore_variants_of_wallets_are_accepted(tmp_path: Path) -> None:
    document = encrypted()
    document["Crypto"] = document.pop("crypto")
    document["x-ethers"] = {"client": "ethers", "nested": {"deep": 1}}
    assert load_key(write(tmp_path, document), PASSPHRASE).address == KEY.address
    del document["address"]
    assert load_key(write(tmp_path, document), PASSPHRASE).address == KEY.address


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def _many_rounds() -> dict[str, Any]:
    document = encrypted("pbkdf2")
    document["crypto"]["kdfparams"]["c"] = keys.MAX_ROUNDS + 1
    return document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("version", value=1), "version"),
        (_set("crypto", "cipher", value="aes-128-cbc"), "cipher"),
        (_set("crypto", "kdf", value="md5"), "scrypt or pbkdf2"),
        (_set("crypto", "kdfparams", "n", value=1 << 29), "128 n r at most"),
        (_set("crypto", "kdfparams", "n", value=3), "power of two"),
        (_set("crypto", "kdfparams", "p", value=1 << 20), "p: expected an integer"),
        (_set("crypto", "kdfparams", "dklen", value=16), "dklen"),
        (_set("crypto", "ciphertext", value="00" * 31), "64 hex digits"),
        (_set("crypto", "mac", value="00" * 32), "wrong passphrase or damaged"),
        (lambda document: document.update(_many_rounds()), "c: expected an integer"),
        (_set("address", value="11" * 20), f"expected the key of 0x{'11' * 20}"),
        (_set("crypto", value=[]), "expected an object"),
    ],
)
def test_invalid_or_too_costly_keystores_are_refused(change: Callable[[dict[str, Any]], None], said: str) -> None:
    document = encrypted()
    change(document)
    with pytest.raises(ConfigurationError, match=said):
        read_keystore(json.dumps(document).encode(), PASSPHRASE)


# ---------------------------------------------------------------- signers


Answer = Callable[[dict[str, Any]], bytes]


def honest(request: dict[str, Any], key: PrivateKey = KEY) -> bytes:
    if request["method"] == "address":
        return json.dumps({"address": f"0x{key.address.hex()}"}).encode()
    return json.dumps({"signature": "0x" + key.sign(bytes.fromhex(request["digest"][2:])).hex()}).encode()


def saying(answer: Answer) -> Answer:
    """A signer that tells its address, and answers everything else so."""
    return lambda request: honest(request) if request["method"] == "address" else answer(request)


@contextmanager
def serving(path: Path, answer: Answer) -> Iterator[list[dict[str, Any]]]:
    """A signer in a thread; yields the requests as they come."""
    asked: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with suppress(OSError), connection, connection.makefile("rwb") as file:
                    line = file.readline()
                    if not line:
                        return
                    asked.append(json.loads(line))
                    file.write(answer(asked[-1]) + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(str(path))
            thread.join(5)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "signer.sock"


def test_an_external_signer_signs_like_a_key_and_sees_typed_data(place: Path) -> None:
    with serving(place, honest) as asked:
        key = load_key(place, "")
        assert key.address == KEY.address
        assert SignedHead.sign(HEAD, DOMAIN, key) == SignedHead.sign(HEAD, DOMAIN, KEY)
        assert LogReceipt.sign(HEAD, DOMAIN, key) == LogReceipt.sign(HEAD, DOMAIN, KEY)
    told = [(request["kind"], request["about"]["primaryType"]) for request in asked[1:]]
    assert told == [("typed", "Head"), ("typed", "Receipt")]
    for request in asked[1:]:
        signable = encode_typed_data(full_message=request["about"])
        digest = keccak(b"\x19\x01" + signable.header + signable.body)
        assert request["digest"] == f"0x{digest.hex()}", "the signer can compute what it is asked to sign"


def test_a_signer_sees_the_fields_of_a_transaction(place: Path) -> None:
    fields = {
        "chainId": 31337, "nonce": 7, "to": bytes(19) + b"\x05", "value": 10**18, "data": b"\x01\x02", "gas": 21_000,
        "maxFeePerGas": 2 * 10**9, "maxPriorityFeePerGas": 10**9,
    }  # fmt: skip
    with serving(place, honest) as asked:
        assert sign_transaction(load_key(place, ""), fields) == sign_transaction(KEY, fields)
    about = asked[-1]["about"]
    numbers = {name: int(value) for name, value in about.items() if name not in ("to", "data")}
    again = TypedTransaction.from_dict({**numbers, "to": about["to"], "data": about["data"]})
    assert asked[-1]["digest"] == f"0x{again.hash().hex()}"
    assert asked[-1]["kind"] == "transaction"


def test_a_signer_sees_the_statement_of_a_certificate(place: Path) -> None:
    envelope = Envelope(payload=Payload(kind="text/plain", data=b"these weights"))
    with serving(place, honest) as asked:
        assert sign(envelope, load_key(place, "")) == sign(envelope, KEY)
    assert asked[-1]["kind"] == "dsse"
    about = asked[-1]["about"]
    again = OtherEnvelope(b64decode(about["payload"]), about["payloadType"], {})
    assert asked[-1]["digest"] == f"0x{sha256(again.pae()).hexdigest()}"


def test_a_secret_is_derived_from_a_deterministic_signer(place: Path) -> None:
    with serving(place, honest) as asked:
        assert salt_of(load_key(place, ""), HEAD.job_id) == salt_of(KEY, HEAD.job_id)
        assert [request["kind"] for request in asked[1:]] == ["secret", "secret"]


def test_a_signer_whose_signatures_vary_derives_no_secret(place: Path) -> None:
    nonces = iter([5, 6])

    def fickle(request: dict[str, Any]) -> bytes:
        made = signed_with(int(request["digest"], 16), next(nonces))
        return json.dumps({"signature": f"0x{made.hex()}"}).encode()

    with serving(place, saying(fickle)), pytest.raises(ConfigurationError, match="expected the same signature"):
        salt_of(load_key(place, ""), HEAD.job_id)


def signed_with(z: int, nonce: int) -> bytes:
    """A valid signature by KEY with a nonce that is not RFC 6979's."""
    point = ec.derive_private_key(nonce, ec.SECP256K1()).public_key().public_numbers()
    s = pow(nonce, -1, ORDER) * (z + point.x * 0xC0FFEE) % ORDER
    flip = s > ORDER // 2
    return point.x.to_bytes(32, "big") + min(s, ORDER - s).to_bytes(32, "big") + bytes([27 + (point.y % 2 ^ flip)])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"error": "the owner says no"}', "the signer refuses: the owner says no"),
        (b'{"signature": "0x' + b"11" * 65 + b'"}', "expected"),
        (b'{"signature": "0x' + PrivateKey.from_int(5).sign(DIGEST).hex().encode() + b'"}', "expected a signature by"),
        (b'{"signature": "0x12"}', "130 hex digits"),
        (b'{"signature": 5}', "130 hex digits"),
        (b"[]", "expected an object"),
        (b"no json", "expected JSON"),
        (b"[" * 3000, "brackets"),
        (b'{"signature": "0x' + KEY.sign(DIGEST).hex().encode() + b'", "more": 1}', "no other fields"),
        (b"x" * 100_000, "at most 4096 bytes"),
    ],
)
def test_invalid_answers_of_a_signer_are_refused(place: Path, answer: bytes, said: str) -> None:
    with serving(place, saying(lambda _: answer)):
        key = load_key(place, "")
        with pytest.raises(ConfigurationError, match=said):
            key.sign(DIGEST, {})


def test_a_signer_that_does_not_answer_times_out(place: Path) -> None:
    told = threading.Event()

    def slow(_request: dict[str, Any]) -> bytes:
        told.wait(20)
        return b""

    with serving(place, slow):
        with pytest.raises(ConfigurationError, match="does not answer"):
            SignerKey(place, seconds=0.1)
        told.set()
    assert signers.SIGNER_SECONDS > 60
    with pytest.raises(ConfigurationError, match="does not answer"):
        load_key(place, "")  # nobody serves the socket any more


def test_a_signers_key_cannot_be_exported_or_printed(place: Path) -> None:
    with serving(place, honest):
        key = load_key(place, "")
        assert "0xC0FFEE" not in repr(key)
        with pytest.raises(ConfigurationError, match="cannot be written"):
            key.to_pem(PASSPHRASE)


def test_commands_accept_keystores_and_external_signers(
    parties: Parties, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's key is in a keystore, the trainer's behind a socket; no passphrase is asked for that."""
    file = write(tmp_path, encrypted())
    trainer = load_key(parties.path("trainer.pem"), PASSPHRASE)
    with serving(place, lambda request: honest(request, trainer)) as asked:
        keys = ["--client", str(file), "--trainer", str(place), "--output", str(tmp_path / "run")]
        assert run(tiebreak, ["agree", str(parties.path("captured")), *keys]) == 0
        monkeypatch.delenv("TIEBREAK_PASSPHRASE")
        assert run(tiebreak, ["train", str(tmp_path / "run"), "--key", str(place), "--quiet"]) == 0
    made = RunDirectory.open(tmp_path / "run")
    assert made.job.client == KEY.address
    assert [head.head.count for head in made.heads()] == [1, 2, 3]
    kinds = [request["about"]["primaryType"] for request in asked if request.get("about")]
    assert kinds == ["Job", "Head", "Head", "Head"]
    assert OFF_CHAIN.chain_id == made.agreement.domain.chain_id
