"""`tiebreak up` on a slow machine: its terms, and how it ends if they were still too short; its processes are fakes."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tiebreak.cli.main import run, tiebreak
from tiebreak.lab.network import cheating_trainer
from tiebreak.lab.network import local_network as up
from tiebreak.lab.network.local_network import TERMS, UNHURRIED, USUAL_SECONDS, Ending, LocalNetwork, UpPlan
from tiebreak.node import settings
from tiebreak.protocol.chain.devnet import dev_secrets
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError


def town_of(story: list[str], **changes: Any) -> LocalNetwork:
    given: dict[str, Any] = {
        "task": "digits", "steps": None, "cheat": "", "chain": True, "embedded": True, "port": 1,
        "folder": Path("nowhere"), "until_over": True,
    }  # fmt: skip
    return LocalNetwork(UpPlan(**given | changes), story.append)


@pytest.mark.parametrize(
    ("seconds", "changes", "patience", "window"),
    [
        (0, {}, 1, 1),
        (1.4 * USUAL_SECONDS, {}, 1, 1),
        (5 * USUAL_SECONDS, {}, 5, 5),
        (5 * USUAL_SECONDS, {"patience": 2}, 2, 2),
        (0, {"cheat": "rate"}, 1, UNHURRIED),
        (3 * USUAL_SECONDS, {"cheat": "rate"}, 3, 3 * UNHURRIED),
        (3 * USUAL_SECONDS, {"cheat": "rate", "seats": 1}, 3, 3),
    ],
)
def test_a_slow_machine_gets_longer_terms(seconds: float, changes: dict[str, Any], patience: int, window: int) -> None:
    story = list[str]()
    town = town_of(story, **changes)
    town._started = time.monotonic() - seconds
    wanted = {name: patience * value for name, value in TERMS.items()}
    wanted |= {"challenge-window": window * TERMS["challenge-window"], "descent-levels": TERMS["descent-levels"]}
    assert town.terms() == wanted
    assert town.ending.patience == patience
    assert bool(story) is (patience > 1 and "patience" not in changes)


def test_up_ends_when_the_trainer_declines_the_offer() -> None:
    town = town_of([])
    line = {"event": "alarm", "level": "ERROR", "text": "job 01234567: the trainer declines"}
    town.told("auditor", json.dumps(line))
    assert not town.ending.status
    town.told("client", json.dumps(line))
    assert town.ending.status == "declined"
    town.told("client", json.dumps({"event": "job", "level": "INFO", "text": "cancelled"}))
    assert town.ending.status == "declined", "the first ending counts"


@pytest.mark.parametrize(
    ("status", "cheat", "code", "words"),
    [
        ("settled", [], 0, ""),
        ("slashed", ["--cheat", "rate"], 0, ""),
        ("abandoned", ["--cheat", "rate"], 1, "too slow for its terms"),
        ("cancelled", [], 1, "--patience 12"),
        ("declined", [], 1, "--patience 12"),
        ("settled", ["--cheat", "rate"], 2, "expected a job that is slashed, got one that is settled"),
        ("", [], 130, "interrupted"),
    ],
)
def test_the_exit_code_tells_a_slow_machine_from_a_wrong_ending(
    status: str, cheat: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(up, "up", lambda *_: Ending(status=status, patience=3))
    assert run(tiebreak, ["up", "--once", *cheat]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chain", "secret", "is_own"),
    [
        ("", 7, True),
        ("http://127.0.0.1:8545", dev_secrets(1)[0], True),
        ("http://127.0.0.1:8545", 7, False),
        ("https://mainnet.example", dev_secrets(1)[0], False),
        ("http://127.0.0.1:8545,https://mainnet.example", dev_secrets(1)[0], False),
        ("/run/geth.ipc", dev_secrets(1)[0], False),
    ],
)
def test_the_cheating_trainer_refuses_public_chains_and_secret_keys(
    tmp_path: Path, chain: str, secret: int, *, is_own: bool
) -> None:
    """The demonstration of `tiebreak up` refuses another chain, and a key that is not public."""
    found = settings.write("trainer", tmp_path, chain=chain)
    with nullcontext() if is_own else pytest.raises(ConfigurationError, match="nobody cheats for a stake"):
        cheating_trainer.check(found, PrivateKey.from_int(secret))
