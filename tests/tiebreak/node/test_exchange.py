"""A job from the offer to its weights, by hand and over a real hub, with every party in a folder of its own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.parts import slow_except
from tests.tiebreak.node.hubs import Running, running, settings
from tests.tiebreak.parties import PASSPHRASE, Parties, make_parties
from tiebreak.cli.key import PASSPHRASE_VARIABLE, load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.node import exchange
from tiebreak.node.exchange import Roots
from tiebreak.node.mail import Mail
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN as DOMAIN
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.tags import Digest


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        return make_parties(tmp_path_factory.mktemp("exchange"))


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with running(replace(settings(tmp_path / "hub"), domain=DOMAIN)) as found:
        yield found


class Hands:
    """Commands that answer in JSON."""

    def __init__(self, people: Parties, hub: Running, capsys: Any) -> None:
        self.people, self.hub, self._capsys = people, hub, capsys

    def key(self, who: str) -> list[str]:
        return ["--key", str(self.people.path(f"{who}.pem"))]

    def tell(self, *arguments: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        assert run(tiebreak, [*arguments, *(["--json"] if code == 0 else [])]) == code
        told = self._capsys.readouterr()
        return json.loads(told.out) if code == 0 else told.err

    def publish(self, who: str, folder: Path, *more: str, code: int = 0) -> Any:
        return self.tell("publish", str(folder), "--hub", self.hub.url, *self.key(who), *more, code=code)

    def fetch(self, job: str, folder: Path, *more: str, code: int = 0) -> Any:
        where = ["--hub", self.hub.url, "-o", str(folder)]
        return self.tell("fetch", job, *where, *more, code=code)

    def offer(self, folder: Path, *more: str) -> str:
        trainer = f"0x{load_key(self.people.path('trainer.pem')).address.hex()}"
        arguments = ["offer", str(self.people.path("captured")), *self.key("client"), "--trainer", trainer, *more]
        assert run(tiebreak, [*arguments, "-o", str(folder)]) == 0
        return str(self.tell("show", str(folder))["job"])


@pytest.fixture
def hands(people: Parties, hub: Running, capsys: Any) -> Hands:
    return Hands(people, hub, capsys)


@pytest.mark.parametrize("sealed", slow_except([False, True], True), ids=["open", "sealed"])
def test_from_an_offer_to_the_weights(hands: Hands, tmp_path: Path, sealed: bool) -> None:
    people, more, key = hands.people, [], []
    if sealed:
        for who in ("trainer", "stranger"):
            hands._capsys.readouterr()
            assert run(tiebreak, ["key", str(people.path(f"{who}.pem")), "--card"]) == 0
            more += ["--seal-to", hands._capsys.readouterr().out.strip()]
        key = hands.key("stranger")
    client, trainer, auditor = (tmp_path / name for name in ("client", "trainer", "auditor"))
    job = hands.offer(client, *more)
    assert hands.publish("client", client)["new_posts"] == 2, "the offer and the list of its files"
    assert hands.publish("client", client)["new_posts"] == 0
    hands.fetch(job, trainer, *(hands.key("trainer") if sealed else []))
    assert run(tiebreak, ["accept", str(trainer), *hands.key("trainer"), "--step-seconds", "1"]) == 0
    assert people.train(trainer, "--quiet", "--until", "3") == 0
    assert hands.publish("trainer", trainer)["new_posts"] == 3, "the answer, a head and the list"
    assert hands.fetch(job, auditor, *key)["count"] == 1
    assert people.audit(auditor, tmp_path / "replay") == 0
    assert people.train(trainer, "--quiet") == 0
    assert hands.publish("trainer", trainer)["count"] == 3
    again = hands.fetch(job, auditor, *key)
    assert (again["count"], again["refused"]) == (3, [])
    assert people.audit(auditor, tmp_path / "replay") == 0
    assert hands.fetch(job, client, *(hands.key("client") if sealed else []))["refused"] == []
    assert hands.tell("weights", str(client), "-o", str(tmp_path / "w.safetensors"))["tensors"] == 4
    assert RunDirectory.open(client).agreement == RunDirectory.open(trainer).agreement
    assert not [path for folder in (client, trainer, auditor) for path in folder.rglob(".*.fetch*")]


def test_jobs_of_a_hub_are_listed_without_a_chain(hands: Hands, tmp_path: Path) -> None:
    job = hands.offer(tmp_path / "client")
    assert run(tiebreak, ["accept", str(tmp_path / "client"), *hands.key("trainer"), "--step-seconds", "1"]) == 0
    hands.publish("client", tmp_path / "client")
    where = ["--hub", hands.hub.url]
    assert hands.tell("jobs", "list", *where) == hands.tell("games", "list", *where) == []
    opened = RunDirectory.open(tmp_path / "client")
    key = load_key(hands.people.path("client.pem"))
    created = e.CreateJob(job=opened.job, signature=opened.agreement.trainer_signature)
    publisher = exchange.Publisher(Mail(hands.hub.url, DOMAIN), opened.job, DOMAIN, key)
    assert publisher.say(posts.TransactionBody(transaction=created))
    (row,) = hands.tell("jobs", "list", *where)
    assert (row["job"], row["status"], row["heads"]) == (job, "offered", 0)
    shown = hands.tell("jobs", "show", job, *where)
    assert (shown["status"], shown["steps"]) == ("offered", opened.job.steps)
    assert "expected --rpc and --board of a chain, or the --hub" in hands.tell("jobs", "list", code=1)
    assert "expected a game on the board" in hands.tell("games", "show", "ab" * 32, *where, code=1)


def test_only_a_party_publishes_and_only_what_is_offered_is_found(hands: Hands, tmp_path: Path) -> None:
    job = hands.offer(tmp_path / "client")
    assert "client or trainer" in hands.publish("stranger", tmp_path / "client", code=1)
    assert "expected an offer of job" in hands.fetch(job, tmp_path / "there", code=1)
    other = ["--hub", hands.hub.url, "-o", str(tmp_path / "x"), "--contract", "0x" + "22" * 20]
    assert "expected a hub for chain 0" in hands.tell("fetch", job, *other, code=1)


def test_more_than_one_would_take_is_not_fetched(hands: Hands, tmp_path: Path) -> None:
    job = hands.offer(tmp_path / "client")
    hands.publish("client", tmp_path / "client")
    assert "expected at most" in hands.fetch(job, tmp_path / "there", "--most", "100", code=1)


def test_a_hub_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "HUB_SECONDS", 0.5)
    with pytest.raises(ConfigurationError, match="got no answer"):
        exchange.open_hub("http://127.0.0.1:9", DOMAIN)


def test_the_roots_of_parts_of_files(tmp_path: Path) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"more"
    (tmp_path / "file").write_bytes(data)
    for size in (0, 5, PIECE_BYTES, len(data)):
        pieces = [piece_digest(data[at : min(size, at + PIECE_BYTES)]) for at in range(0, max(1, size), PIECE_BYTES)]
        with (tmp_path / "file").open("rb", buffering=0) as file:
            assert Roots().put(file, size) == blob_root(size, pieces)
    with (tmp_path / "file").open("rb", buffering=0) as file, pytest.raises(EncodingError, match="end of the file"):
        Roots().put(file, len(data) + 1)
    with (tmp_path / "file").open("rb", buffering=0) as file, pytest.raises(CannotCheck):
        Roots().get(Digest(bytes(32)), 1, file)
