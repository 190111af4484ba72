"""Files of earlier days are verified, audited, resumed, judged and served by today's code."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiebreak.node.hubs import ask, running, settings
from tests.tiebreak.parties import PASSPHRASE, Commands
from tiebreak.api.disputing.judging import read_transcripts
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.node.journal import Journal
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties.posts import SignedPost

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files of one day."""
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    copied = shutil.copytree(request.param, tmp_path / "files")
    for key in copied.glob("*.pem"):
        key.chmod(0o600)  # which git does not keep
    return copied


def expected_of(files: Path) -> Any:
    return json.loads((files / "expected.json").read_text())


def test_files_of_the_first_days_are_kept() -> None:
    assert {"2026-11-26", "2026-11-29"} <= {path.name for path in VERSIONS}
    assert sum(path.stat().st_size for folder in VERSIONS for path in folder.rglob("*") if path.is_file()) < 500_000


def test_certificates_are_verified(files: Path, command: Commands) -> None:
    expected = expected_of(files)
    signers = [option for one in expected["signatures"] for option in ("--require", one["address"])]
    found = command.tell("verify", files / "model.safetensors", files / "certificate.json", *signers)
    assert {name: found[name] for name in ("job", "run_root", "signatures")} == {
        name: expected[name] for name in ("job", "run_root", "signatures")
    }


def test_finished_and_resumed_runs_end_with_the_same_root_and_are_audited(files: Path, command: Commands) -> None:
    expected = expected_of(files)
    resumed = command("train", files / "interrupted", "--key", files / "trainer.pem", "--threads", 1, "--json")
    first, *_, last = map(json.loads, resumed.splitlines())
    assert (first["event"], first["step"]) == ("start", 3), "from its last checkpoint"
    assert last["run_root"] == expected["run_root"]
    for name in ("run", "interrupted"):
        found = command.tell("audit", files / name, "--output", files / f"replay-of-{name}", "--threads", 1)
        assert (found["verdict"], found["head"]["run_root"], found["job"]) == (
            "agrees", expected["run_root"], expected["job"],
        )  # fmt: skip


def test_replays_find_the_same_difference_in_a_false_run_and_none_in_a_true_one(files: Path, command: Commands) -> None:
    expected = expected_of(files)
    found = command.tell("dispute", files / "false", files / "replay", "--threads", 1)
    assert found | expected["difference"] == found
    assert found["walk"][: len(expected["walk"])] == expected["walk"]
    out, _ = command.printed("dispute", files / "run", files / "replay", "--threads", 1, code=4)
    assert out.startswith("nothing to dispute")


@pytest.mark.parametrize("files", [path for path in VERSIONS if (path / "logged").exists()], indirect=True)
def test_logged_runs_are_resumed_and_audited_and_journals_read(files: Path, command: Commands) -> None:
    expected = expected_of(files)
    command("train", files / "logged", "--key", files / "logged.pem", "--threads", 1, "--quiet")
    found = command.tell("audit", files / "logged", "--output", files / "replay-of-logged", "--threads", 1)
    assert (found["verdict"], found["replayed_root"]) == ("agrees", expected["logged_root"])
    assert (found["log"]["entries"] > 0, found["log"]["missing"], found["log"]["findings"]) == (True, 0, [])
    journal = Journal(files / "journal", {"role": "trainer"})
    assert {"records": len(journal.records()), "unheard": len(journal.unheard())} == expected["journal"]
    journal.close()


def test_captured_jobs_are_agreed_on(files: Path, command: Commands) -> None:
    keys = ("--client", files / "client.pem", "--trainer", files / "trainer.pem")
    command("agree", files / "captured", *keys, "--output", files / "agreed")
    assert command.tell("show", files / "agreed")


def test_hub_databases_are_served_and_transcripts_judged(files: Path, command: Commands) -> None:
    """Hubs of 26 November did not sign that a job's posts are all, so this one does it for them."""
    expected, end = expected_of(files), files / "end"
    (first, *_), _ = read_transcripts([files / "posts"])
    job = SignedPost.decode(first.wire).post.job_id.hex()
    (files / "hub").mkdir()
    database = f"sqlite+pysqlite:///{files / 'hub.sqlite'}"
    key = PrivateKey.from_int(expected["hub_secret"])
    with running(replace(settings(files / "hub", database), key=key, domain=OFF_CHAIN)) as hub:
        assert ask(hub, "GET", f"/posts?job={job}")[2] == (files / "posts").read_bytes()
        if not end.exists():
            end.write_bytes(ask(hub, "GET", f"/posts/end?job={job}")[2])
    found = command.tell("judge", files / "posts", end, "--hub-key", expected["hub"])
    assert {name: found[name] for name in expected["judged"]} == expected["judged"]
    assert [game["right"] for game in found["games"]] == ["challenger"]
