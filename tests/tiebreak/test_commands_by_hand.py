"""Everything that a person does by hand on a chain, and what there is to read about it."""

import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.chain.support import ETHER, new_chain
from tests.tiebreak.parties import Commands, Parties, flip
from tiebreak.api.chain import onchain
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.commitments.certificate import Certificate, Seat
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.statement import sign

NONCES = count(1)


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    return new_chain()


@pytest.fixture(autouse=True)
def _on_this_chain(chain: EmbeddedChain, parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onchain.Chain, "connect", lambda endpoint: chain)
    for name in ("client", "trainer", "stranger"):
        account = load_key(parties.path(f"{name}.pem")).address
        if not chain.balance(account):
            chain.fund(account, 100 * ETHER)


class Desk:
    """One job on the chain, and the commands about it."""

    def __init__(self, parties: Parties, chain: EmbeddedChain, folder: Path, nonce: int, command: Commands) -> None:
        self.parties, self.run, self.tell = parties, folder / "run", command.tell
        self.board = ["--rpc", "here", "--board", f"0x{chain.deployment.board.hex()}"]
        where = ["--chain-id", chain.chain_id, "--board", self.board[-1], "--nonce", nonce]
        times = ["--challenge-window", 1000, "--audit-time", 0, "--output", self.run]
        command("agree", parties.path("captured"), *parties.keys, *where, *times)
        self.job = RunDirectory.open(self.run).job

    def send(self, command: str, who: str, *more: object, code: int = 0) -> Any:
        key, words = self.parties.path(f"{who}.pem"), ["certify"] if command == "certify" else ["chain", command]
        return self.tell(*words, self.run, "--key", key, "--rpc", "here", *more, code=code)


@pytest.fixture
def desk(parties: Parties, chain: EmbeddedChain, tmp_path: Path, command: Commands) -> Desk:
    return Desk(parties, chain, tmp_path, next(NONCES), command)


def test_commands_take_a_job_from_creation_to_payment_on_chain(
    desk: Desk, chain: EmbeddedChain, tmp_path: Path
) -> None:
    parties = desk.parties
    assert "expected the key of" in desk.send("post", "trainer", code=1), "the client is first"
    assert desk.send("post", "client")["sent"] == "the job, with 1 ether for it"
    assert "the trainer, to accept" in desk.send("post", "client", code=1)
    assert desk.send("post", "trainer")["sent"] == "its acceptance, with a stake of 1 ether"
    assert "expected a signed head, got none" in desk.send("post", "trainer", code=1)
    assert parties.train(desk.run, "--quiet") == 0
    assert desk.send("post", "trainer", "--count", "1")["sent"] == "head 1 of 3"
    early = desk.tell("weights", str(desk.run), "--rpc", "here", "-o", str(tmp_path / "early"), code=1)
    assert "expected a job that is settled, got one that is active" in early
    standing = desk.tell("show", str(desk.run), "--rpc", "here")
    assert standing["signed"] == standing["of"] == 3
    assert standing["chain"]["heads"] == 1
    assert 0 < standing["chain"]["seconds_left"] <= 1000
    assert standing["chain"]["trainer_stake_at_risk"] == "1 ether"
    assert desk.send("post", "trainer")["sent"] == "head 3 of 3"
    assert "expected a head of more than 3 checkpoints" in desk.send("post", "trainer", code=1)
    assert "the contract refused: " in desk.send("settle", "stranger", code=1)
    chain.advance(1001)
    assert desk.send("settle", "stranger")["gas"] > 0
    assert desk.tell("chain", "jobs", desk.job.id.hex(), *desk.board)["status"] == "settled"
    weights = ["weights", str(desk.run), "--rpc", "here", "-o", str(tmp_path / "w.safetensors")]
    assert desk.tell(*weights)["settled"] == "yes"
    assert_weights(tmp_path / "w.safetensors", RunDirectory.open(desk.run))
    assert_certified(desk, tmp_path)
    assert_owned(desk, tmp_path)
    assert "one that is settled" in desk.send("post", "trainer", code=1)
    key = ["--key", parties.path("trainer.pem"), *desk.board]
    before = chain.balance(desk.job.client)
    to = ["--to", f"0x{desk.job.client.hex()}"]
    assert desk.tell("chain", "withdraw", *key, *to)["sent"] == "2 ether"
    assert chain.balance(desk.job.client) == before + 2 * ETHER
    assert "expected credit of" in desk.tell("chain", "withdraw", *key, code=1)


def assert_owned(desk: Desk, folder: Path) -> None:
    """The board is the witness of when heads were posted."""
    proof, asked = folder / "proof", ["--challenge", str(folder / "challenge.json")]
    prove = ["ownership", "prove", str(desk.run), "-o", str(proof)]
    desk.tell(*prove)
    desk.tell("ownership", "check", str(proof), *asked)
    desk.tell(*prove, *asked, "--key", str(desk.parties.path("client.pem")))
    found = desk.tell("ownership", "check", str(proof), *asked, "--rpc", "here")
    assert found["role"] == "client"
    heads = [re.fullmatch(r"head (\d): block (\d+) of chain \d+", line) for line in found["posted"]]
    assert [head and head[1] for head in heads] == ["1", "3"]


def assert_certified(desk: Desk, folder: Path) -> None:
    """A certificate names the transaction that settled the job, and the board is asked whether it did."""
    weights, path = str(folder / "w.safetensors"), folder / "certificate.json"
    desk.send("certify", "trainer", "--weights", weights, "-o", str(path))
    found = desk.tell("verify", weights, str(path), "--rpc", "here")
    assert found["proves"][-1] == "The node says that the board settled the job with this head."
    assert "no node of its chain was asked" in desk.tell("verify", weights, str(path))["not_proven"][-1]
    key, envelope = load_key(desk.parties.path("trainer.pem")), Envelope.decode(path.read_bytes())
    right = Certificate.decode(envelope.payload)
    assert right.settlement is not None
    seat = Seat(auditor=key.address, number=0, paid=right.settlement)
    for other, said in (
        (replace(right, settlement=replace(right.settlement, transaction=bytes(32))), "expected settlement by"),
        (replace(right, audits=(seat,)), "expected a seat among"),
    ):
        path.write_bytes(sign(Envelope(payload=other.payload), key).encode())
        desk.tell("verify", weights, str(path))
        assert said in desk.tell("verify", weights, str(path), "--rpc", "here", code=2)


def test_verifying_on_chain_refuses_unsettled_jobs_and_other_chains(
    desk: Desk, parties: Parties, chain: EmbeddedChain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parties.train(desk.run, "--quiet") == 0
    weights, path = str(tmp_path / "w.safetensors"), str(tmp_path / "certificate.json")
    desk.tell("weights", str(desk.run), "--unsettled", "-o", weights)
    certify = ["--weights", weights, "-o", path]
    assert "one that is none" in desk.send("certify", "trainer", *certify, code=1)
    key = ["--key", str(parties.path("trainer.pem"))]
    assert desk.tell("certify", str(desk.run), *key, *certify)["tensors"] == 4
    assert "one that is none" in desk.tell("verify", weights, path, "--rpc", "here", code=1)
    elsewhere = parties.trained(tmp_path / "elsewhere")
    other = ["--weights", weights, "-o", str(tmp_path / "other.json")]
    desk.tell("certify", str(elsewhere), *key, *other)
    assert "judged off chain" in desk.tell("verify", weights, str(tmp_path / "other.json"), "--rpc", "here", code=1)
    monkeypatch.setattr(chain.node, "chain_id", 5)
    assert "got 5; is this the right endpoint" in desk.tell("verify", weights, path, "--rpc", "here", code=1)


def assert_weights(file: Path, opened: RunDirectory) -> None:
    state = opened.state(opened.job.steps)
    found = load_file(file)
    assert found.keys() == {name.removeprefix("model.") for name in state if name.startswith("model.")}
    assert all(torch.equal(tensor, state[f"model.{name}"]) for name, tensor in found.items())


def test_weights_that_are_not_the_signed_ones_are_not_written(
    parties: Parties, tmp_path: Path, command: Commands
) -> None:
    folder = parties.trained(tmp_path / "run")
    output, like = tmp_path / "model", tmp_path / "like"
    like.mkdir()
    for name in ("config.json", "tokenizer.model", "modeling_evil.py", "model.safetensors.index.json"):
        (like / name).write_text(name)
    assert "no board was asked" in command("weights", folder, "-o", output, "--like", like)
    assert sorted(path.name for path in output.iterdir()) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert_weights(output / "model.safetensors", RunDirectory.open(folder))
    assert "already exists" in command("weights", folder, "-o", output / "model.safetensors", code=1)
    state, no = folder / "checkpoints" / "000000000007.safetensors", tmp_path / "no"
    flip(state)
    assert "state after step 7: expected root" in command("weights", folder, "-o", no, code=2)
    state.unlink()
    command("weights", folder, "-o", no, code=2)
    (folder / "heads" / "000000000003.bin").unlink()
    error = command("weights", folder, "-o", no, code=1)
    assert "expected a signed head of all 3 checkpoints, got one of 2" in error
    assert not no.exists()


@pytest.mark.slow
def test_challenge_is_refused_if_the_replay_confirms_the_head(
    desk: Desk, chain: EmbeddedChain, tmp_path: Path, command: Commands
) -> None:
    for who in ("client", "trainer"):
        desk.send("post", who)
    replay = tmp_path / "replay"
    assert desk.parties.train(desk.run, "--quiet") == 0
    assert desk.parties.audit(desk.run, replay) == 0
    desk.send("post", "trainer")
    assert "expected --replay FOLDER, or --anyway" in desk.send("challenge", "stranger", code=1)
    assert "a challenge would lose the stake" in desk.send("challenge", "stranger", "--replay", replay, code=1)
    game = desk.send("challenge", "stranger", "--anyway", "--nonce", 3)["game"]
    listed = desk.tell("chain", "games", *desk.board, "--job", desk.job.id.hex())
    assert [(row["game"], row["verdict"], row["head"]) for row in listed] == [(game, None, 3)]
    shown = desk.tell("chain", "games", game, *desk.board)
    assert (shown["phase"], shown["level"]) == ("descend", "run")
    assert [event["event"] for event in shown["events"]] == ["GameStarted"]
    rows = {row["job"]: row for row in desk.tell("chain", "jobs", *desk.board)}
    assert rows[desk.job.id.hex()]["open_games"] == 1
    assert rows[desk.job.id.hex()]["client"] == f"0x{desk.job.client.hex()}"
    assert command("chain", "jobs", *desk.board).startswith("job  ")
    assert "  1 ether  " in command("chain", "jobs", *desk.board)
    claim = ["chain", "claim", game, "--key", desk.parties.path("client.pem"), *desk.board]
    assert "the contract refused: " in command(*claim, code=1)
    chain.advance(desk.job.clock + 2 * desk.job.replay_time + desk.job.talk_time + 2)
    assert desk.tell(*claim)["sent"] == f"a claim that the clock of game {game} ran out"
    assert desk.tell("chain", "games", game, *desk.board)["verdict"] == "defender_lost"
    assert desk.tell("show", desk.run, "--rpc", "here")["chain"]["status"] == "slashed"


def test_a_replay_that_contradicts_the_head_justifies_a_challenge(desk: Desk, parties: Parties, tmp_path: Path) -> None:
    for who in ("client", "trainer"):
        desk.send("post", who)
    parties.cheat(desk.run, 5)
    assert parties.audit(desk.run, tmp_path / "replay") == 2
    desk.send("post", "trainer")
    other = parties.path("run")
    assert "expected a replay of job" in desk.send("challenge", "stranger", "--replay", other, code=1)
    sent = desk.send("challenge", "stranger", "--replay", tmp_path / "replay")["sent"]
    assert sent == "a challenge of head 3"
    prover = f"0x{load_key(parties.path('stranger.pem')).address.hex()}"
    for given in (["--how", "concede"], ["--to", prover]):
        assert "expected --to ADDRESS with --how concede" in desk.send("settle", "trainer", *given, code=1)
    concede = ["--how", "concede", "--to", prover]
    assert "the trainer, to concede" in desk.send("settle", "stranger", *concede, code=1)
    assert desk.send("settle", "trainer", *concede)["sent"] == f"the concession of head 3 to {prover}"
    assert desk.tell("show", desk.run, "--rpc", "here")["chain"]["status"] == "slashed"


def test_an_offer_that_nobody_accepts_is_cancelled(desk: Desk) -> None:
    desk.send("post", "client")
    assert desk.send("settle", "client", "--how", "cancel")["sent"] == f"cancel of job {desk.job.id.hex()}"
    assert desk.tell("show", desk.run, "--rpc", "here")["chain"]["status"] == "cancelled"


def test_unknown_jobs_and_games_are_reported(desk: Desk, parties: Parties, command: Commands) -> None:
    for name in ("jobs", "games"):
        assert "on the board, got none of id abab" in command("chain", name, "ab" * 32, *desk.board, code=1)
        assert "expected an id of 64 hex digits" in command("chain", name, "12", *desk.board, code=1)
    assert "expected a job for a chain" in command("show", parties.path("agreed"), "--rpc", "here", code=1)


def test_show_and_publish_describe_and_pack_a_run(parties: Parties, tmp_path: Path, command: Commands) -> None:
    folder = parties.path("run")
    opened = RunDirectory.open(folder)
    shown = command.tell("show", "--long", folder)
    assert shown["job"] == opened.job.id.hex()
    assert shown["agreed"]
    assert shown["programRoot"] == f"0x{opened.job.program_root.hex()}"
    assert f"head         {opened.heads()[-1].head.run_root.hex()}" in command("show", folder)
    planned = command.tell("publish", folder)
    assert planned["packed"] is None
    assert planned["files"] == shown["files"]
    assert "files:" in command("publish", folder, "-o", tmp_path / "packed", "--count", 1)
    assert parties.audit(tmp_path / "packed", tmp_path / "replay") == 0
    assert command.tell("publish", parties.path("agreed"))["bytes"] > 0
