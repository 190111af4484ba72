"""Publishing and fetching the files of a job, from honest and from hostile publishers; offers and their acceptance."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.engine import frozen_cases
from tests.tiebreak.parties import Parties, flip
from tiebreak.api.agreement import offers
from tiebreak.api.training.bundle import load_bundle
from tiebreak.cli.key import load_key
from tiebreak.engine.data.disk import read_exactly
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.logged.policy import POLICY
from tiebreak.engine.run.directory import DATA, HEADS, JOB, ORIGINS, PROGRAM, RECORDS, TITLE, RunDirectory, head_name
from tiebreak.node import library
from tiebreak.node.library import Fetcher, pack, publish
from tiebreak.node.parts import FilePart, parts
from tiebreak.protocol import errors
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import SignedJob
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.parties.posts import LibraryBody, PublishedFile
from tiebreak.protocol.tags import Digest

FIRST_STATE = "checkpoints/000000000000.safetensors"
LAST_STATE = "checkpoints/000000000007.safetensors"


def root_of(data: bytes) -> Digest:
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, max(1, len(data)), PIECE_BYTES)]
    return blob_root(len(data), [piece_digest(piece) for piece in pieces])


class JobFiles:
    """`PublishedFiles` in memory; `breaks` says after how many bytes the next transfers are cut off."""

    def __init__(self) -> None:
        self.held: dict[Digest, bytes] = {}
        self.sent: list[int] = []
        self.breaks: list[int] = []

    def add(self, data: bytes) -> Digest:
        root = root_of(data)
        self.held[root] = data
        return root

    def put(self, file: FileIO, size: int) -> Digest:
        data = bytearray(size)
        assert read_exactly(file, memoryview(data)) == size
        return self.add(bytes(data))

    def get(self, root: Digest, size: int, file: FileIO) -> None:
        if root not in self.held or len(self.held[root]) != size:
            raise errors.CannotCheck(f"no blob {root.hex()}")
        data, have = self.held[root], file.seek(0, os.SEEK_END)
        file.seek(0)
        assert data.startswith(file.read()), "what is there belongs to this blob"
        end = have + self.breaks.pop() if self.breaks else size
        file.write(data[have:end])
        self.sent.append(min(end, size) - have)
        if end < size:
            raise errors.CannotCheck("the connection broke off")


@pytest.fixture
def trained(parties: Parties, tmp_path: Path) -> RunDirectory:
    return RunDirectory.open(parties.trained(tmp_path / "trained"))


@pytest.fixture
def job_files() -> JobFiles:
    return JobFiles()


def published(run: RunDirectory, job_files: JobFiles, count: int, *, states: bool = False) -> LibraryBody:
    return publish(run, parts(run, count, states=states), job_files, count)


def changed(body: LibraryBody, name: str, **fields: object) -> LibraryBody:
    files = [replace(f, **fields) if f.name == name.encode() else f for f in body.files]  # type: ignore[arg-type]
    return replace(body, files=tuple(files))


def take(run: RunDirectory, folder: Path, job_files: JobFiles, *bodies: LibraryBody, count: int = 0) -> library.Fetched:
    return Fetcher(folder, job_files, run.job, run.agreement.domain, bodies).fetch(count)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {".lock"}


def test_a_published_run_can_be_fetched_and_audited(
    parties: Parties, trained: RunDirectory, job_files: JobFiles, tmp_path: Path
) -> None:
    body = published(trained, job_files, 3, states=True)
    found = Fetcher(tmp_path / "there", job_files, trained.job, trained.agreement.domain, [body]).fetch(3, states=True)
    assert found.missing.keys() == {"offer.bin", "seal.bin", "state_dict.tsv", "unchecked.txt"}
    assert not any(found.missing.values())
    assert parties.audit(tmp_path / "there", tmp_path / "replay") == 0
    there = RunDirectory.open(tmp_path / "there")
    assert there.records() == trained.records()
    assert there.state(7).keys() == trained.state(7).keys()
    assert there.kept() == [0, 3, 6, 7]
    assert parties.audit(there.path, tmp_path / "r", "--sample", "1", "--seed", "s") == 0


def test_states_without_frozen_entries_are_published_and_fetched(job_files: JobFiles, tmp_path: Path) -> None:
    run = frozen_cases.new_run(tmp_path / "run")
    frozen_cases.work(run)
    body, steps = published(run, job_files, 6, states=True), [0, 4, 8, 12, 16, 20, 24]
    found = Fetcher(tmp_path / "there", job_files, run.job, run.agreement.domain, [body]).fetch(6, states=True)
    assert not any(found.missing.values())
    there = RunDirectory.open(tmp_path / "there")
    assert there.kept() == steps
    for step in steps:
        assert identities(there.state(step)) == identities(run.state(step))
        assert there.state_path(step).read_bytes() == run.state_path(step).read_bytes()
    last = run.state_path(24)
    whole = {name: tensor.clone() for name, tensor in run.state(24).items()}
    for change, message in ((0.0, ""), (1.0, "state: expected root")):  # whole states pass too, if they are true
        whole[frozen_cases.EMBEDDING][1, 1] += change
        save_file(whole, last)
        found = take(run, tmp_path / f"changed {change}", job_files, published(run, job_files, 6), count=6)
        reasons = found.missing.get(f"checkpoints/{last.name}", [])
        assert message in " ".join(reasons)
        assert bool(reasons) == bool(message)


def test_fetching_again_takes_only_new_files(trained: RunDirectory, job_files: JobFiles, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    first = take(trained, folder, job_files, published(trained, job_files, 1), count=1)
    assert {PROGRAM, DATA, FIRST_STATE, JOB, RECORDS} <= set(first.taken)
    assert LAST_STATE not in names(folder)
    second = take(trained, folder, job_files, published(trained, job_files, 3), count=3)
    assert set(second.taken) == {"heads/000000000003.bin", RECORDS, LAST_STATE}
    assert [head.head.count for head in RunDirectory.open(folder).heads()] == [1, 3]
    assert take(trained, folder, job_files, published(trained, job_files, 3), count=3).taken == []


def test_a_broken_transfer_goes_on_where_it_stopped(trained: RunDirectory, job_files: JobFiles, tmp_path: Path) -> None:
    body = published(trained, job_files, 0)
    job_files.breaks = [100]
    found = take(trained, tmp_path / "t", job_files, body)
    assert found.missing[JOB] == ["the connection broke off"]
    assert [name for name in names(tmp_path / "t") if name.endswith(".fetch")]
    assert take(trained, tmp_path / "t", job_files, body).taken == [JOB]
    assert job_files.sent[0] == 100
    assert job_files.sent[-1] == (trained.path / JOB).stat().st_size - 100
    assert not [name for name in names(tmp_path / "t") if name.endswith(".fetch")]


@pytest.mark.parametrize("name", [JOB, PROGRAM, DATA, FIRST_STATE, "heads/000000000003.bin", RECORDS, LAST_STATE])
def test_a_false_file_is_discarded_and_another_publishers_is_used(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path, name: str
) -> None:
    honest = published(trained, job_files, 3)
    good = (trained.path / name).read_bytes()
    bad = good[:-1] + bytes([good[-1] ^ 1])
    lying = changed(honest, name, root=job_files.add(bad))
    found = take(trained, tmp_path / "both", job_files, lying, honest, count=3)
    assert name in found.taken
    assert (tmp_path / "both" / name).read_bytes() == good
    if name in (PROGRAM, DATA, FIRST_STATE):
        with pytest.raises(errors.CannotCheck, match=Path(name).name):
            take(trained, tmp_path / "alone", job_files, lying, count=3)
    else:
        assert take(trained, tmp_path / "alone", job_files, lying, count=3).missing[name]
    kept = names(tmp_path / "alone")
    assert (name not in kept) or (name == RECORDS and not (tmp_path / "alone" / name).read_bytes())
    assert not [left for left in kept if left.endswith(".fetch")]


def test_false_records_are_fetched_as_their_trainer_signed_them(
    parties: Parties, job_files: JobFiles, tmp_path: Path
) -> None:
    run = RunDirectory.open(parties.cheating(tmp_path / "false", 5))
    take(run, tmp_path / "there", job_files, published(run, job_files, 3), count=3)
    assert parties.audit(tmp_path / "there", tmp_path / "replay") == 2


def test_file_sizes_claimed_by_a_listing_are_limited(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path
) -> None:
    body = published(trained, job_files, 3)
    with pytest.raises(errors.CannotCheck, match=r"data\.safetensors: expected at most \d+ bytes, got 1099511627776"):
        take(trained, tmp_path / "a", job_files, changed(body, DATA, size=1 << 40))
    with pytest.raises(errors.CannotCheck, match=r"program\.tbp: expected at most 100 bytes"):
        Fetcher(tmp_path / "b", job_files, trained.job, trained.agreement.domain, [body], most=100).fetch(0)
    assert sum(job_files.sent) < 1 << 20


@pytest.mark.parametrize("other", [1, 3])
def test_a_head_of_another_count_than_requested_is_refused(
    other: int, trained: RunDirectory, job_files: JobFiles, tmp_path: Path
) -> None:
    wanted, given = (f"{HEADS}/{head_name(count)}" for count in (2, other))
    data = (trained.path / given).read_bytes()
    body = changed(published(trained, job_files, 2), wanted, root=job_files.add(data), size=len(data))
    assert (
        "expected a head of count 2" in take(trained, tmp_path / "there", job_files, body, count=2).missing[wanted][0]
    )


def test_the_total_size_of_a_fetch_is_limited_to_the_byte(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path
) -> None:
    body = published(trained, job_files, 0)
    total, domain = sum(file.size for file in body.files), trained.agreement.domain
    found = Fetcher(tmp_path / "whole", job_files, trained.job, domain, [body], most=total).fetch(0)
    assert {file.name.decode() for file in body.files} == set(found.taken)
    short = Fetcher(tmp_path / "short", job_files, trained.job, domain, [body], most=total - 1).fetch(0)
    (name,) = {file.name.decode() for file in body.files} - set(short.taken)
    assert "expected at most" in short.missing[name][0]


def test_a_full_disk_is_reported_before_anything_is_downloaded(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "SPARE_BYTES", 1 << 62)
    with pytest.raises(errors.ConfigurationError, match="expected 46116860184273"):
        take(trained, tmp_path / "a", job_files, published(trained, job_files, 0))
    assert job_files.sent == []


def test_listed_files_with_unknown_names_are_ignored(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path
) -> None:
    body = published(trained, job_files, 3)
    more = [PublishedFile(name=n, size=4, root=job_files.add(b"evil")) for n in (b"policy.json", b"zzz/run.py")]
    full = replace(body, files=tuple(sorted([*body.files, *more], key=lambda file: file.name)))
    take(trained, tmp_path / "there", job_files, full, count=3)
    assert not {"policy.json", "zzz/run.py"} & names(tmp_path / "there")


@pytest.mark.parametrize("trap", [Path.symlink_to, Path.hardlink_to])
def test_fetching_does_not_write_through_planted_links(
    trained: RunDirectory, job_files: JobFiles, tmp_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    body, folder = published(trained, job_files, 0), tmp_path / "there"
    folder.mkdir()
    (folder / "victim").write_bytes(b"mine")
    root = next(file.root for file in body.files if file.name == PROGRAM.encode())
    trap(folder / f".{root.hex()[:32]}.fetch", folder / "victim")
    with pytest.raises((errors.CannotCheck, errors.VerificationError, errors.ConfigurationError)):
        take(trained, folder, job_files, body)
    assert (folder / "victim").read_bytes() == b"mine"


def test_a_folder_of_another_job_is_refused(trained: RunDirectory, job_files: JobFiles, tmp_path: Path) -> None:
    body = published(trained, job_files, 0)
    take(trained, tmp_path / "there", job_files, body)
    other = replace(trained.job, nonce=99)
    with pytest.raises(errors.VerificationError, match=f"expected job {other.id.hex()}"):
        Fetcher(tmp_path / "there", job_files, other, trained.agreement.domain, [body]).fetch(0)


def test_only_what_exists_is_published(parties: Parties, job_files: JobFiles, tmp_path: Path) -> None:
    run = RunDirectory.open(parties.signed(tmp_path / "new"))
    assert {part.name for part in parts(run, 0)} == {JOB, PROGRAM, DATA, FIRST_STATE, ORIGINS, TITLE}
    with pytest.raises(errors.StateError, match="expected a signed head of count 1"):
        parts(run, 1)


def test_a_pack_holds_what_an_audit_needs_and_nothing_else(
    parties: Parties, trained: RunDirectory, tmp_path: Path
) -> None:
    listed = parts(trained, 3)
    pack(trained, listed, tmp_path / "packed")
    assert names(tmp_path / "packed") == {part.name for part in listed}
    assert sum(part.size for part in listed) == sum(
        (tmp_path / "packed" / n).stat().st_size for n in names(tmp_path / "packed")
    )
    assert parties.audit(tmp_path / "packed", tmp_path / "replay") == 0
    with pytest.raises(errors.ConfigurationError, match="expected a new or empty folder"):
        pack(trained, listed, tmp_path / "packed")


def test_a_pack_of_a_file_that_shrank_is_refused(trained: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(errors.EncodingError, match=r"program\.tbp: expected 99999999 bytes"):
        pack(trained, [FilePart(PROGRAM, 99999999)], tmp_path / "packed")


# ---------------------------------------------------------------- offers


@pytest.fixture
def offered(parties: Parties, tmp_path: Path) -> Path:
    client, trainer = (load_key(parties.path(f"{name}.pem")) for name in ("client", "trainer"))
    offers.offer_on(
        load_bundle(parties.path("captured")), tmp_path / "offered", client=client, trainer=trainer.address,
        terms=Terms(), domain=OFF_CHAIN,
    )  # fmt: skip
    return tmp_path / "offered"


def test_an_offer_is_published_fetched_accepted_and_completed(
    parties: Parties, offered: Path, job_files: JobFiles, tmp_path: Path
) -> None:
    offer = offers.open_offer(offered)
    with pytest.raises(errors.ConfigurationError, match=r"which has no job\.bin"):
        RunDirectory.open(offered)
    take(offer, tmp_path / "trainers", job_files, published(offer, job_files, 0))
    run = offers.accept(tmp_path / "trainers", load_key(parties.path("trainer.pem")))
    assert run.agreement.trainer_signature
    assert parties.train(tmp_path / "trainers", "--quiet") == 0
    # The client needs the signature only, and its folder is a run as well; doing it twice changes nothing.
    for _ in range(2):
        assert offers.complete(offered, run.agreement.trainer_signature).agreement == run.agreement
    with pytest.raises(errors.VerificationError, match="expected the signature that the run has"):
        offers.complete(offered, bytes(65))


def test_only_the_trainer_can_accept_an_offer(parties: Parties, offered: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="expected the key of trainer"):
        offers.accept(offered, load_key(parties.path("stranger.pem")))
    with pytest.raises(errors.SignatureError):
        offers.complete(offered, offers.open_offer(offered).agreement.client_signature)
    assert not (offered / JOB).exists()


def test_an_offer_over_other_data_is_not_accepted(parties: Parties, offered: Path) -> None:
    flip(offered / DATA)
    with pytest.raises(errors.VerificationError, match="expected root"):
        offers.accept(offered, load_key(parties.path("trainer.pem")))
    assert not (offered / JOB).exists()


@pytest.mark.parametrize("name", [RECORDS, POLICY])
def test_an_offer_that_contains_records_or_a_policy_is_not_accepted(parties: Parties, offered: Path, name: str) -> None:
    """A trainer would sign heads over records, or round by thresholds, that the client made up."""
    shutil.copy(parties.path("run") / RECORDS, offered / name)
    with pytest.raises(errors.VerificationError, match=f"expected an offer without work in it, got a {name}"):
        offers.accept(offered, load_key(parties.path("trainer.pem")))
    assert not (offered / JOB).exists()


def test_a_wrongly_signed_or_missing_offer_is_refused(offered: Path) -> None:
    offer = SignedJob.decode((offered / offers.OFFER).read_bytes())
    (offered / offers.OFFER).write_bytes(replace(offer, job=replace(offer.job, nonce=5)).encode())
    with pytest.raises(errors.VerificationError, match="signature"):
        offers.open_offer(offered)
    (offered / offers.OFFER).unlink()
    with pytest.raises(errors.StateError, match="expected an offer"):
        offers.open_offer(offered)
