"""Sealed jobs: who can open them, what a hub sees, and what a hostile hub or publisher can do."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiebreak.parties import Commands, Parties
from tests.tiebreak.test_library import JobFiles, changed, names
from tiebreak.api.agreement import offers, sealing
from tiebreak.api.agreement.sealing import SEAL, Card, Sealed, opened_by, wrapped
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import DATA, JOB, ORIGINS, PROGRAM, RECORDS, TITLE, RunDirectory
from tiebreak.node.library import Fetcher, publish, secret_of
from tiebreak.node.parts import parts
from tiebreak.protocol.commitments.blobs import PIECE_BYTES
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.parties.posts import LibraryBody
from tiebreak.protocol.tags import Digest

KEY, OTHER = PrivateKey.from_int(0xC0FFEE), PrivateKey.from_int(0xBEEF)
JOB_ID = Digest(bytes(range(32)))
SEALED = Sealed(job_id=JOB_ID, secret=bytes(32))


class Bytes(io.BytesIO):
    """Stands in for a `FileIO`: memory writes all that it is given."""


def sealed(data: bytes, name: str = "x") -> bytes:
    target = Bytes()
    assert SEALED.seal(name, Bytes(data), len(data), target) == len(target.getvalue())  # type: ignore[arg-type]
    return target.getvalue()


def opened(data: bytes, name: str = "x", by: Sealed = SEALED) -> bytes:
    target = Bytes()
    by.open(name, Bytes(data), len(data), target)  # type: ignore[arg-type]
    return target.getvalue()


def take(folder: Path, job_files: JobFiles, offer: RunDirectory, *bodies: LibraryBody, by: PrivateKey) -> None:
    """Fetches what leads up to the last head that was published first, as the owner of a key."""
    fetcher = Fetcher(folder, job_files, offer.job, offer.agreement.domain, bodies, unseal=opened_by(by))
    fetcher.fetch(bodies[0].count)


FIRST = PIECE_BYTES - sealing.SALT_BYTES - sealing.TAG_BYTES
LATER = PIECE_BYTES - sealing.TAG_BYTES


def test_sealed_files_of_every_length_round_trip(cases: Callable[[], None]) -> None:
    for size in (0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + LATER, FIRST + LATER + 1):
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        found = sealed(data)
        assert len(found) == sealing.sealed_bytes(size)
        assert opened(found) == data
        assert sealed(data) == found, "an upload that broke off goes on with the same bytes"
        cases()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_changed_or_truncated_sealed_files_are_refused(data: bytes, draw: st.DataObject) -> None:
    found = bytearray(sealed(data))
    cut = draw.draw(st.integers(0, len(found) - 1))
    with pytest.raises(VerificationError):
        opened(bytes(found[:cut]))
    found[cut] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(VerificationError):
        opened(bytes(found))
    with pytest.raises(VerificationError):
        opened(sealed(data) + b"\0")


def test_pieces_cannot_be_moved_or_files_exchanged() -> None:
    data = bytes(FIRST + 3 * LATER)
    found = sealed(data)
    first, second, third = (found[i * PIECE_BYTES : (i + 1) * PIECE_BYTES] for i in range(3))
    for wrong in (first + third + second + found[3 * PIECE_BYTES :], first + second, found[: 3 * PIECE_BYTES]):
        with pytest.raises(VerificationError):
            opened(wrong)
    with pytest.raises(VerificationError):
        opened(found, "y")
    for by in (replace(SEALED, job_id=Digest(bytes(32))), replace(SEALED, secret=b"\1" * 32)):
        with pytest.raises(VerificationError):
            opened(found, by=by)


def test_equal_plaintexts_under_other_names_share_no_ciphertext() -> None:
    first, second = sealed(bytes(500), "a"), sealed(bytes(500), "b")
    assert first[: sealing.SALT_BYTES] != second[: sealing.SALT_BYTES]
    assert not any(first[i : i + 16] in second for i in range(len(first) - 16))


# ---------------------------------------------------------------- readers


def test_only_the_named_readers_can_open_a_seal() -> None:
    data = wrapped(SEALED.secret, JOB_ID, [Card.of(KEY), Card.of(OTHER), Card.of(KEY)])
    assert [address for address, _ in sealing.readers_of(data, JOB_ID)] == sorted([KEY.address, OTHER.address])
    for key in (KEY, OTHER):
        assert opened_by(key)(data, JOB_ID) == SEALED.secret
    stranger = PrivateKey.from_int(5)
    with pytest.raises(CannotCheck, match="sealed to 2 readers, and 0x"):
        opened_by(stranger)(data, JOB_ID)
    to_another = wrapped(SEALED.secret, JOB_ID, [Card(address=KEY.address, public=Card.of(stranger).public)])
    with pytest.raises(VerificationError, match="expected the job's secret"):
        opened_by(KEY)(to_another, JOB_ID)
    with pytest.raises(VerificationError, match="expected job"):
        opened_by(KEY)(data, Digest(bytes(32)))
    assert "00000000" not in repr(SEALED)


def test_a_readers_key_card_must_be_signed_by_its_account() -> None:
    text = Card.of(KEY).text(KEY)
    assert Card.read(f" {text}\n") == Card.of(KEY)
    other = bytearray.fromhex(text[2:])
    other[30] ^= 1
    with pytest.raises(SignatureError):
        Card.read(other.hex())
    for bad in ("", "0x12", "zz" * 117, text + "00"):
        with pytest.raises(EncodingError, match="expected a card"):
            Card.read(bad)


def test_a_low_order_public_key_is_refused() -> None:
    with pytest.raises(VerificationError, match="bad point"):
        wrapped(SEALED.secret, JOB_ID, [Card(address=KEY.address, public=bytes(32))])
    with pytest.raises(ConfigurationError, match="1 to 64 readers"):
        wrapped(SEALED.secret, JOB_ID, [])


# ---------------------------------------------------------------- a sealed job on a hub


@pytest.fixture
def offered(parties: Parties, tmp_path: Path, command: Commands) -> Path:
    """Through the commands: the cards of trainer and stranger (here the auditor), one as text and one in a file."""
    cards = {}
    for name in ("trainer", "stranger"):
        key = load_key(parties.path(f"{name}.pem"))
        cards[name] = Card.of(key).text(key)
    (tmp_path / "stranger.card").write_text(cards["stranger"] + "\n")
    to = ["--seal-to", cards["trainer"], "--seal-to", str(tmp_path / "stranger.card")]
    client = ["--client", str(parties.path("client.pem")), "--trainer", parties.address("trainer")]
    folder = tmp_path / "offered"
    command("agree", parties.path("captured"), *client, *to, "-o", folder)
    return folder


def test_the_hub_sees_ciphertext_and_the_readers_the_job(parties: Parties, offered: Path, tmp_path: Path) -> None:
    client, trainer, auditor = (load_key(parties.path(f"{n}.pem")) for n in ("client", "trainer", "stranger"))
    offer, job_files = offers.open_offer(offered), JobFiles()
    with pytest.raises(ConfigurationError, match="expected the key of a reader, because the job is sealed"):
        publish(offer, parts(offer, 0), job_files, 0)
    assert not job_files.held
    body = publish(offer, parts(offer, 0), job_files, 0, secret_of(offer, opened_by(client)))
    assert {file.name.decode() for file in body.files} == {
        "offer.bin", SEAL, f"{PROGRAM}.sealed", f"{DATA}.sealed", f"{ORIGINS}.sealed", f"{TITLE}.sealed",
        "checkpoints/000000000000.safetensors.sealed",
    }  # fmt: skip
    kept = b"".join(job_files.held[file.root] for file in body.files if file.name.endswith(b".sealed"))
    assert len(kept) > sum((offered / name).stat().st_size for name in (PROGRAM, DATA))
    for secret in (PROGRAM, DATA):
        plain = (offered / secret).read_bytes()
        assert not any(plain[at : at + 24] in kept for at in range(0, len(plain) - 24, 24))

    with pytest.raises(CannotCheck, match="it is sealed; the key of a reader opens it"):
        Fetcher(tmp_path / "thief", job_files, offer.job, offer.agreement.domain, [body]).fetch(0)
    with pytest.raises(CannotCheck, match="sealed to 3 readers, and 0x"):
        take(tmp_path / "thief", job_files, offer, body, by=PrivateKey.from_int(9))
    mine = tmp_path / "trainers"
    take(mine, job_files, offer, body, by=trainer)
    assert (mine / PROGRAM).read_bytes() == (offered / PROGRAM).read_bytes()
    offers.accept(mine, trainer)
    assert parties.train(mine, "--quiet") == 0

    made = RunDirectory.open(mine)
    later = publish(made, parts(made, 3), job_files, 3, secret_of(made, opened_by(trainer)))
    later_names = {file.name.decode() for file in later.files}
    assert {JOB, f"{RECORDS}.sealed"} <= later_names
    assert RECORDS not in later_names, "records tell losses"
    same = {f.name: f.root for f in body.files if f.name.endswith(b".sealed")}
    assert same.items() <= {f.name: f.root for f in later.files}.items(), "the same plaintext is stored once"
    take(tmp_path / "auditors", job_files, offer, later, body, by=auditor)
    left = names(mine) | names(tmp_path / "auditors")
    assert not [name for name in left if ".fetch" in name or name.endswith(".sealed")]


def test_a_false_sealed_file_is_discarded(parties: Parties, offered: Path, tmp_path: Path) -> None:
    client, trainer = (load_key(parties.path(f"{n}.pem")) for n in ("client", "trainer"))
    offer, job_files = offers.open_offer(offered), JobFiles()
    secret = secret_of(offer, opened_by(client))
    assert secret is not None
    body = publish(offer, parts(offer, 0), job_files, 0, secret)
    wrong = bytearray((offered / DATA).read_bytes())
    wrong[-1] ^= 1
    target = Bytes()
    secret.seal(DATA, Bytes(bytes(wrong)), len(wrong), target)  # type: ignore[arg-type]
    root = job_files.add(target.getvalue())
    lying = changed(body, f"{DATA}.sealed", root=root)
    with pytest.raises(CannotCheck, match="expected root"):
        take(tmp_path / "a", job_files, offer, lying, by=trainer)
    assert DATA not in names(tmp_path / "a")
    assert not [name for name in names(tmp_path / "a") if ".fetch" in name]
    take(tmp_path / "a", job_files, offer, lying, body, by=trainer)
    assert (tmp_path / "a" / DATA).read_bytes() == (offered / DATA).read_bytes()


def test_another_publishers_seal_does_not_lock_auditors_out(parties: Parties, offered: Path, tmp_path: Path) -> None:
    """A trainer that lists an envelope with a secret of its own does not keep auditors from the client's files."""
    client, auditor = (load_key(parties.path(f"{n}.pem")) for n in ("client", "stranger"))
    offer, job_files = offers.open_offer(offered), JobFiles()
    body = publish(offer, parts(offer, 0), job_files, 0, secret_of(offer, opened_by(client)))
    root = job_files.add(wrapped(bytes(32), offer.job.id, [Card.of(auditor)]))
    size = len(job_files.held[root])
    lying = replace(body, files=tuple(replace(f, root=root, size=size) for f in body.files if f.name == SEAL.encode()))
    take(tmp_path / "a", job_files, offer, lying, body, by=auditor)
    assert (tmp_path / "a" / DATA).read_bytes() == (offered / DATA).read_bytes()


def test_a_sealed_job_must_include_its_trainer_as_reader(parties: Parties, tmp_path: Path, command: Commands) -> None:
    stranger, no = parties.path("stranger.pem"), tmp_path / "no"
    card = command("key", stranger, "--card").strip()
    assert Card.read(card).address == load_key(stranger).address
    assert command("key", stranger, "--show").strip() == f"0x{Card.read(card).address.hex()}"
    trainer = parties.address("trainer")
    who = ["--client", parties.path("client.pem"), "--trainer", trainer]
    error = command("agree", parties.path("captured"), *who, "--seal-to", card, "-o", no, code=1)
    assert f"expected a card of trainer {trainer}" in error
    assert not no.exists()
