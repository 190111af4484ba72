"""Jobs among strangers, over real processes: sealed ones, of which a hub sees ciphertext, and ones with seats.

Both at once, and sealed ones whose parties are killed. `make anvil` plays seats on anvil.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiebreak.node.test_up import TASK, TRUE_ROOT, Stormy, free_port, roots, said, said_twice
from tiebreak.api.readers import Card
from tiebreak.engine.run.directory import DATA, PROGRAM, RECORDS
from tiebreak.node import up
from tiebreak.node.up import TERMS, Plan, Town
from tiebreak.protocol.chain.devnet import BALANCE, find_anvil
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.parties import posts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FEE = BOND = 10**17
GAS = 10**16
"""Wei: more than what the transactions of a party cost on this chain, and a tenth of a fee."""
WINDOW = 24
"""Bytes that are looked for at once."""


class Sealing(Town):
    """Seals its job to the trainer and the auditors."""

    def wishes(self) -> list[str]:
        keys = [self.key(name) for name in self.plan.parties if name != "client"]
        return [part for key in keys for part in ("--seal-to", Card.of(key).text(key))]


class SealingInStorm(Sealing, Stormy):
    pass


def plan_of(folder: Path, *, cheat: str = "", seats: int = 0, embedded: bool = True, window: int = 0) -> Plan:
    terms = TERMS | ({"challenge-window": window} if window else {})
    return Plan(task=str(TASK), steps=None, cheat=cheat, chain=True, embedded=embedded, port=free_port(), folder=folder,
                until_over=True, terms=terms, seats=seats)  # fmt: skip


def play(town: type[Town], plan: Plan) -> Town:
    story: list[str] = []
    made = town(plan, story.append)
    try:
        made.run()
    finally:
        print("\n".join(story))
    return made


def windows(path: Path) -> Iterator[bytes]:
    """What can be recognised of a file."""
    data = path.read_bytes()
    for at in range(0, len(data) - WINDOW, 8):
        window = data[at : at + WINDOW]
        if len(set(window)) > WINDOW // 2:
            yield window


def test_kills_at_any_instant_change_nothing_for_a_sealed_job(tmp_path: Path) -> None:
    """Ending and root are those of an undisturbed job, nothing is signed twice, and nothing lies open for a while."""
    folder = tmp_path / "town"
    town = SealingInStorm(plan_of(folder, embedded=False, window=120), 2, 8)
    try:
        town.run()
    finally:
        print("\n".join(town.story))
    assert len(town.killed) >= 4, town.killed
    assert town.ending.status == "settled"
    assert not said_twice(folder)
    assert roots(folder)[4].startswith(TRUE_ROOT)
    the_hub_is_blind(folder)


def the_hub_is_blind(folder: Path) -> None:
    """Of what its parties hold, a hub has nothing in the clear but what a dispute has opened."""
    (job,) = (folder / "trainer" / "jobs").iterdir()
    states = sorted((job / "checkpoints").iterdir())
    plain = {name: set(windows(path)) for path in (job / PROGRAM, job / DATA, job / RECORDS, *states)
             for name in [path.name]}  # fmt: skip
    assert len(states) > 1
    assert all(plain.values())

    blobs = [path.read_bytes() for path in (folder / "hub").rglob("*") if path.is_file() and ".sqlite" not in path.name]
    assert sum(map(len, blobs)) > sum(path.stat().st_size for path in (job / PROGRAM, job / DATA))
    for name, found in plain.items():
        assert not any(window in blob for window in found for blob in blobs), name
    shown = {post.kind for post in said(folder) for found in plain.values() if any(w in post.body for w in found)}
    assert shown <= {posts.PostKind.MOVE}, "a move opens what the referee needs, and no other post shows anything"
    assert not [post for post in said(folder) if post.kind == posts.PostKind.STEPS], "losses are not told"

    for party in ("client", "trainer", "auditor", "auditor2"):
        for name in ("jobs", "replays"):
            place = folder / party / name
            assert not place.exists() or place.stat().st_mode & 0o77 == 0
    for path in (folder / "trainer" / "jobs").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0, path


STORY = (
    "trainer mined seal [0-9a-f]+ 4", "client mined draw .*", "auditor2? work audit", "auditor2? mined sit .*",
    "trainer mined open .*|trainer say ShowHead 4", "auditor2? mined claim .*", "auditor2? mined withdraw",
)  # fmt: skip


@pytest.mark.parametrize(
    ("town", "embedded"),
    [
        pytest.param(Town, False, id="anvil", marks=pytest.mark.skipif(find_anvil() is None, reason="needs anvil")),
        pytest.param(Sealing, True, id="sealed"),
    ],
)
@pytest.mark.parametrize(("cheat", "status"), [("", "settled"), ("rate", "slashed")])
def test_auditors_are_paid_for_seats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, town: type[Town], embedded: bool, cheat: str, status: str
) -> None:
    """Heads are sealed, the client draws, the seats' auditors seal what they computed, and only then a head is shown.

    Fees and shares are those of SPEC section 11.1, to the gas of the transactions. One auditor may have both seats.
    """
    monkeypatch.setattr(up, "AFTER_SECONDS", 15)
    ending = play(town, plan_of(tmp_path / "town", cheat=cheat, seats=2, embedded=embedded)).ending
    assert ending.status == status
    order = [min(at for moment, at in ending.moments.items() if re.fullmatch(words, moment)) for words in STORY]
    assert order == sorted(order)
    assert [moment for moment in ending.moments if "ShowHead" in moment] == ["trainer say ShowHead 4"]
    if town is Sealing:
        the_hub_is_blind(tmp_path / "town")

    half, paid = Terms().trainer_stake // 2, 0
    for name in ("auditor", "auditor2"):
        seats = len([moment for moment in ending.moments if moment.startswith(f"{name} mined claim ")])
        won = len([moment for moment in ending.moments if moment.startswith(f"{name} mined prove ")])
        earned = seats * FEE + (seats + won) * (half // 3 if cheat else 0)
        balance = json.loads((tmp_path / "town" / name / "status.json").read_text())["balance"]
        assert -GAS < balance - (BALANCE - BOND + earned) <= 0, name
        paid += seats
    assert paid == 2
    if town is Sealing:
        the_hub_is_blind(tmp_path / "town")
