"""A job from the offer to its weights, by hand and over a real hub, with every party in a folder of its own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.town import JOB
from tests.tiebreak.node.hubs import Running, running, settings
from tests.tiebreak.parties import Commands, Parties
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.node import exchange
from tiebreak.node.hub_client import HubClient
from tiebreak.node.library import Fetched
from tiebreak.node.pieces import pieces_of
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, piece_digest
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN as DOMAIN
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with running(replace(settings(tmp_path / "hub"), domain=DOMAIN)) as found:
        yield found


class Hands:
    def __init__(self, people: Parties, hub: Running, command: Commands) -> None:
        self.people, self.hub, self.command, self.tell = people, hub, command, command.tell
        self.where = ["--hub", hub.url]

    def key(self, who: str) -> list[object]:
        return ["--key", self.people.path(f"{who}.pem")]

    def publish(self, who: str, folder: Path, code: int = 0) -> Any:
        return self.tell("publish", folder, *self.where, *self.key(who), code=code)

    def fetch(self, job: str, folder: Path, *more: object, code: int = 0) -> Any:
        return self.tell("fetch", job, *self.where, "-o", folder, *more, code=code)

    def offer(self, folder: Path, *more: object) -> str:
        to = ["--client", self.people.path("client.pem"), "--trainer", self.people.address("trainer")]
        self.command("agree", self.people.path("captured"), *to, *more, "-o", folder)
        return str(self.tell("show", folder)["job"])

    def accept(self, folder: Path) -> None:
        self.command("agree", folder, "--trainer", self.people.path("trainer.pem"), "--step-seconds", 1)


@pytest.fixture
def hands(parties: Parties, hub: Running, command: Commands) -> Hands:
    return Hands(parties, hub, command)


def test_a_sealed_job_runs_from_offer_to_weights_over_a_hub(hands: Hands, tmp_path: Path) -> None:
    people, more, key = hands.people, [], hands.key("stranger")
    for who in ("trainer", "stranger"):
        more += ["--seal-to", hands.command("key", people.path(f"{who}.pem"), "--card").strip()]
    client, trainer, auditor = (tmp_path / name for name in ("client", "trainer", "auditor"))
    job = hands.offer(client, *more)
    assert hands.publish("client", client)["new_posts"] == 2, "the offer and the list of its files"
    assert hands.publish("client", client)["new_posts"] == 0
    hands.fetch(job, trainer, *hands.key("trainer"))
    hands.accept(trainer)
    assert people.train(trainer, "--quiet", "--until", "3") == 0
    assert hands.publish("trainer", trainer)["new_posts"] == 3, "the answer, a head and the list"
    assert hands.fetch(job, auditor, *key)["count"] == 1
    assert people.audit(auditor, tmp_path / "replay") == 0
    assert people.train(trainer, "--quiet") == 0
    assert hands.publish("trainer", trainer)["count"] == 3
    again = hands.fetch(job, auditor, *key)
    assert (again["count"], again["refused"]) == (3, [])
    assert people.audit(auditor, tmp_path / "replay") == 0
    assert hands.fetch(job, client, *hands.key("client"))["refused"] == []
    assert hands.tell("weights", client, "-o", tmp_path / "w.safetensors")["tensors"] == 4
    assert RunDirectory.open(client).agreement == RunDirectory.open(trainer).agreement
    assert not [path for folder in (client, trainer, auditor) for path in folder.rglob(".*.fetch*")]


def test_jobs_of_a_hub_are_listed_without_a_chain(hands: Hands, tmp_path: Path) -> None:
    job = hands.offer(tmp_path / "client")
    hands.accept(tmp_path / "client")
    hands.publish("client", tmp_path / "client")
    where = hands.where
    assert hands.tell("chain", "jobs", *where) == hands.tell("chain", "games", *where) == []
    opened = RunDirectory.open(tmp_path / "client")
    key = load_key(hands.people.path("client.pem"))
    created = tx.CreateJob(job=opened.job, signature=opened.agreement.trainer_signature)
    publisher = exchange.Publisher(HubClient(hands.hub.url, DOMAIN), opened.job, DOMAIN, key)
    assert publisher.say(posts.TransactionBody(transaction=created))
    (row,) = hands.tell("chain", "jobs", *where)
    assert (row["job"], row["status"], row["heads"]) == (job, "offered", 0)
    shown = hands.tell("chain", "jobs", job, *where)
    assert (shown["status"], shown["steps"]) == ("offered", opened.job.steps)
    assert hands.fetch(job, tmp_path / "there")["refused"] == []
    assert "expected --rpc and --board of a chain, or the --hub" in hands.tell("chain", "jobs", code=1)
    assert "expected a game on the board" in hands.tell("chain", "games", "ab" * 32, *where, code=1)


def test_only_parties_publish_and_only_offered_jobs_are_fetched(hands: Hands, tmp_path: Path) -> None:
    job = hands.offer(tmp_path / "client")
    assert "client or trainer" in hands.publish("stranger", tmp_path / "client", code=1)
    assert "expected an offer of job" in hands.fetch(job, tmp_path / "there", code=1)
    other = ["--board", "0x" + "22" * 20]
    assert "expected a hub for chain 0" in hands.fetch(job, tmp_path / "x", *other, code=1)
    hands.publish("client", tmp_path / "client")
    assert "expected at most" in hands.fetch(job, tmp_path / "there", "--most", 100, code=1)


def test_an_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HUB_SECONDS", 0.5)
    with pytest.raises(ConfigurationError, match="got no answer"):
        exchange.open_hub("http://127.0.0.1:9", DOMAIN)


def test_pieces_of_file_prefixes_are_those_of_their_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"more"
    (tmp_path / "file").write_bytes(data)
    for size in (0, 5, PIECE_BYTES, len(data)):
        pieces = [piece_digest(data[at : min(size, at + PIECE_BYTES)]) for at in range(0, max(1, size), PIECE_BYTES)]
        with (tmp_path / "file").open("rb", buffering=0) as file:
            assert pieces_of(file, size) == pieces
    with (tmp_path / "file").open("rb", buffering=0) as file, pytest.raises(EncodingError, match="end of the file"):
        pieces_of(file, len(data) + 1)


def test_fetch_uses_only_file_lists_of_the_parties_longest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that lies may show a stranger's."""
    senders = {"client": JOB.client, "trainer": JOB.trainer, "stranger": Address(b"\x09" * 20)}
    said = [("client", posts.OfferBody(job=JOB))]
    for sender, count in (("client", 0), ("trainer", 1), ("stranger", 9), ("trainer", 2), ("client", 2)):
        said.append((sender, posts.LibraryBody(count=count, logs=0, files=())))
    found = [SimpleNamespace(post=SimpleNamespace(sender=senders[sender]), body=body) for sender, body in said]
    given: list[Any] = []

    class Fetches:
        def __init__(self, folder: Path, hub_client: Any, job: Any, domain: Any, listings: Any, **_: Any) -> None:
            given.append([listing.count for listing in listings])

        def fetch(self, count: int, *, states: bool) -> Any:
            given.append(count)
            return Fetched(path=tmp_path)

    monkeypatch.setattr(exchange, "read_posts", lambda *_: found)
    monkeypatch.setattr(exchange, "Fetcher", Fetches)
    wanted, _ = exchange.fetch_from(SimpleNamespace(), JOB.id, DOMAIN, tmp_path)  # type: ignore[arg-type]
    assert given == [[2, 2, 1, 0], 2]
    assert wanted == 2, "up to the last checkpoint that the trainer published"
