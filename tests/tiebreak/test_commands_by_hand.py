"""Everything that a person does by hand on a chain, and what there is to read about it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.chain.support import ETHER, new_chain
from tests.tiebreak.parties import Parties, doubled_weight
from tiebreak.api import onchain
from tiebreak.cli.key import load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.commitments.certificate import Certificate, Seat, sign
from tiebreak.protocol.commitments.dsse import Envelope


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

    def __init__(self, parties: Parties, chain: EmbeddedChain, folder: Path, nonce: int, capsys: Any) -> None:
        self.parties, self.run, self._capsys = parties, folder / "run", capsys
        self.board = f"0x{chain.deployment.board.hex()}"
        keys = ["--client-key", str(parties.path("client.pem")), "--trainer-key", str(parties.path("trainer.pem"))]
        where = ["--chain-id", str(chain.chain_id), "--contract", self.board, "--nonce", str(nonce)]
        times = ["--challenge-window", "1000", "--audit-time", "0", "--output", str(self.run)]
        assert run(tiebreak, ["agree", str(parties.path("captured")), *keys, *where, *times]) == 0
        self.job = RunDirectory.open(self.run).job

    def tell(self, *arguments: str, code: int = 0) -> Any:
        """The JSON document of a command, or the complaint of one that fails."""
        self._capsys.readouterr()
        assert run(tiebreak, [*arguments, *(["--json"] if code == 0 else [])]) == code
        told = self._capsys.readouterr()
        return json.loads(told.out) if code == 0 else told.err

    def send(self, command: str, who: str, *more: str, code: int = 0) -> Any:
        key = str(self.parties.path(f"{who}.pem"))
        return self.tell(command, str(self.run), "--key", key, "--rpc", "here", *more, code=code)


def test_a_job_by_hand_from_its_creation_to_the_money(
    parties: Parties, chain: EmbeddedChain, tmp_path: Path, capsys: Any
) -> None:
    desk = Desk(parties, chain, tmp_path, 1, capsys)
    assert "expected the key of" in desk.send("post", "trainer", code=1), "the client is first"
    assert desk.send("post", "client")["sent"] == "the job, with 1 ether for it"
    assert "the trainer, to accept" in desk.send("post", "client", code=1)
    assert desk.send("post", "trainer")["sent"] == "its acceptance, with a stake of 1 ether"
    assert "expected a signed head, got none" in desk.send("post", "trainer", code=1)
    assert parties.train(desk.run, "--quiet") == 0
    assert desk.send("post", "trainer", "--count", "1")["sent"] == "head 1 of 3"
    early = desk.tell("weights", str(desk.run), "--rpc", "here", "-o", str(tmp_path / "early"), code=1)
    assert "expected a job that is settled, got one that is active" in early
    standing = desk.tell("status", str(desk.run), "--rpc", "here")
    assert standing["signed"] == standing["of"] == 3
    assert standing["chain"]["heads"] == 1
    assert 0 < standing["chain"]["seconds_left"] <= 1000
    assert standing["chain"]["trainer_stake_at_risk"] == "1 ether"
    assert desk.send("post", "trainer")["sent"] == "head 3 of 3"
    assert "expected a head of more than 3 checkpoints" in desk.send("post", "trainer", code=1)
    assert "the contract refused: " in desk.send("settle", "stranger", code=1)
    chain.advance(1001)
    assert desk.send("settle", "stranger")["gas"] > 0
    assert desk.tell("jobs", "show", desk.job.id.hex(), "--rpc", "here", "--board", desk.board)["status"] == "settled"
    weights = ["weights", str(desk.run), "--rpc", "here", "-o", str(tmp_path / "w.safetensors")]
    assert desk.tell(*weights)["settled"] == "yes"
    assert_weights(tmp_path / "w.safetensors", RunDirectory.open(desk.run))
    assert_certified(desk, tmp_path)
    assert_owned(desk, tmp_path)
    assert "one that is settled" in desk.send("post", "trainer", code=1)
    key = ["--key", str(parties.path("trainer.pem")), "--rpc", "here", "--board", desk.board]
    before = chain.balance(desk.job.client)
    to = ["--to", f"0x{desk.job.client.hex()}"]
    assert desk.tell("withdraw", *key, *to)["sent"] == "2 ether"
    assert chain.balance(desk.job.client) == before + 2 * ETHER
    assert "expected credit of" in desk.tell("withdraw", *key, code=1)


def assert_owned(desk: Desk, folder: Path) -> None:
    """The board is the witness of when heads were posted."""
    proof, asked = folder / "proof", ["--challenge", str(folder / "challenge.json")]
    prove = ["prove-ownership", str(desk.run), "-o", str(proof)]
    desk.tell(*prove)
    desk.tell("check-ownership", str(proof), *asked)
    desk.tell(*prove, *asked, "--key", str(desk.parties.path("client.pem")))
    found = desk.tell("check-ownership", str(proof), *asked, "--rpc", "here")
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


def test_a_certificate_of_a_job_that_is_not_settled_or_on_another_chain(
    parties: Parties, chain: EmbeddedChain, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(parties, chain, tmp_path, 6, capsys)
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


def test_weights_that_are_not_the_signed_ones_are_not_written(parties: Parties, tmp_path: Path, capsys: Any) -> None:
    folder = parties.trained(tmp_path / "run")
    output, like = tmp_path / "model", tmp_path / "like"
    like.mkdir()
    for name in ("config.json", "tokenizer.model", "modeling_evil.py", "model.safetensors.index.json"):
        (like / name).write_text(name)
    assert run(tiebreak, ["weights", str(folder), "-o", str(output), "--like", str(like)]) == 0
    assert "no board was asked" in capsys.readouterr().out
    assert sorted(path.name for path in output.iterdir()) == ["config.json", "model.safetensors", "tokenizer.model"]
    assert_weights(output / "model.safetensors", RunDirectory.open(folder))
    assert run(tiebreak, ["weights", str(folder), "-o", str(output / "model.safetensors")]) == 1
    assert "already exists" in capsys.readouterr().err
    state = folder / "checkpoints" / "000000000007.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    assert run(tiebreak, ["weights", str(folder), "-o", str(tmp_path / "no")]) == 2
    assert "state after step 7: expected root" in capsys.readouterr().err
    state.unlink()
    assert run(tiebreak, ["weights", str(folder), "-o", str(tmp_path / "no")]) == 2
    (folder / "heads" / "000000000003.bin").unlink()
    assert run(tiebreak, ["weights", str(folder), "-o", str(tmp_path / "no")]) == 1
    assert "expected a signed head of all 3 checkpoints, got one of 2" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_false_head_is_challenged_and_a_true_one_is_not(
    parties: Parties, chain: EmbeddedChain, tmp_path: Path, capsys: Any
) -> None:
    desk = Desk(parties, chain, tmp_path, 2, capsys)
    for who in ("client", "trainer"):
        desk.send("post", who)
    replay = tmp_path / "replay"
    assert parties.train(desk.run, "--quiet") == 0
    assert parties.audit(desk.run, replay) == 0
    desk.send("post", "trainer")
    assert "expected --replay FOLDER, or --anyway" in desk.send("challenge", "stranger", code=1)
    assert "a challenge would lose the stake" in desk.send("challenge", "stranger", "--replay", str(replay), code=1)
    game = desk.send("challenge", "stranger", "--anyway", "--nonce", "3")["game"]
    board = ["--rpc", "here", "--board", desk.board]
    listed = desk.tell("games", "list", *board, "--job", desk.job.id.hex())
    assert [(row["game"], row["verdict"], row["head"]) for row in listed] == [(game, None, 3)]
    shown = desk.tell("games", "show", game, *board)
    assert (shown["phase"], shown["level"]) == ("descend", "run")
    assert [event["event"] for event in shown["events"]] == ["GameStarted"]
    rows = {row["job"]: row for row in desk.tell("jobs", "list", *board)}
    assert rows[desk.job.id.hex()]["open_games"] == 1
    assert rows[desk.job.id.hex()]["client"] == f"0x{desk.job.client.hex()}"
    assert run(tiebreak, ["jobs", "list", *board]) == 0
    assert capsys.readouterr().out.startswith("job  ")


def test_a_replay_that_contradicts_the_head_is_a_reason(
    parties: Parties, chain: EmbeddedChain, tmp_path: Path, capsys: Any
) -> None:
    desk = Desk(parties, chain, tmp_path, 3, capsys)
    for who in ("client", "trainer"):
        desk.send("post", who)
    cheat, honest = doubled_weight(desk.run, 5), tmp_path / "replay"
    desk.parties.tampered_in(desk.run, cheat)
    assert parties.audit(desk.run, honest) == 2
    desk.send("post", "trainer")
    assert desk.send("challenge", "stranger", "--replay", str(honest))["sent"] == "a challenge of head 3"
    other = Desk(parties, chain, tmp_path / "other", 4, capsys)
    assert "expected a replay of job" in desk.send("challenge", "stranger", "--replay", str(other.run), code=1)


def test_an_offer_that_nobody_accepts_is_cancelled(
    parties: Parties, chain: EmbeddedChain, tmp_path: Path, capsys: Any
) -> None:
    desk = Desk(parties, chain, tmp_path, 5, capsys)
    desk.send("post", "client")
    assert desk.send("settle", "client", "--how", "cancel")["sent"] == f"cancel of job {desk.job.id.hex()}"
    assert desk.tell("status", str(desk.run), "--rpc", "here")["chain"]["status"] == "cancelled"


def test_what_is_not_there_is_told(parties: Parties, chain: EmbeddedChain, capsys: Any, tmp_path: Path) -> None:
    board = ["--rpc", "here", "--board", f"0x{chain.deployment.board.hex()}"]
    for command in ("jobs", "games"):
        assert run(tiebreak, [command, "show", "ab" * 32, *board]) == 1
        assert "on the board, got none of id abab" in capsys.readouterr().err
        assert run(tiebreak, [command, "show", "12", *board]) == 1
        assert "expected an id of 64 hex digits" in capsys.readouterr().err
    off_chain = parties.signed(tmp_path / "off")
    assert run(tiebreak, ["status", str(off_chain), "--rpc", "here"]) == 1
    assert "expected a job for a chain" in capsys.readouterr().err


def test_a_run_is_shown_and_packed(parties: Parties, tmp_path: Path, capsys: Any) -> None:
    folder = parties.trained(tmp_path / "run")
    opened = RunDirectory.open(folder)
    capsys.readouterr()
    assert run(tiebreak, ["show", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["job"] == opened.job.id.hex()
    assert shown["agreed"]
    assert shown["programRoot"] == f"0x{opened.job.program_root.hex()}"
    assert run(tiebreak, ["status", str(folder)]) == 0
    assert f"head         {opened.heads()[-1].head.run_root.hex()}" in capsys.readouterr().out
    assert run(tiebreak, ["pack", str(folder), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["packed"] is None
    assert planned["files"] == shown["files"]
    assert run(tiebreak, ["pack", str(folder), "-o", str(tmp_path / "packed"), "--count", "1"]) == 0
    assert "files:" in capsys.readouterr().out
    assert parties.audit(tmp_path / "packed", tmp_path / "replay") == 0
    capsys.readouterr()
    assert run(tiebreak, ["pack", str(parties.signed(tmp_path / "new")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 0
