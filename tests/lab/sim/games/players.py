"""Stand-ins for the game, where what is tested is who runs it: processes find these functions by their names."""

import os
import signal
import time
from random import Random
from typing import Any

from tiebreak.lab.sim.games.line import GameLine

ADVERSARIES = {
    name: {"name": name, "role": "trainer", "gain": "work not done", "caught": ["recomputed"], "open": False}
    for name in ("breaking", "dying", "hanging", "poison", "slow")
}


def result(line: str, **changes: Any) -> dict[str, Any]:
    """The shape of a game's result, with numbers that follow from the line."""
    game = GameLine.parse(line, ADVERSARIES)
    rng = Random(line)
    found: dict[str, Any] = {
        "line": line, "adversaries": list(game.adversaries), "catches": dict.fromkeys(game.adversaries, "recomputed"),
        "job_status": "slashed" if game.adversaries else "settled", "false_head": bool(game.adversaries),
        "watched": True, "seconds": rng.randrange(10**5), "blocks": 9, "faults": {}, "violations": [],
        "parties": [
            party("trainer", "trainer", game.adversaries[0] if game.adversaries else None, wei=-rng.randrange(10**9)),
            party("auditor", "auditor", None, wei=rng.randrange(10**9)),
        ],
        "duels": [duel(rounds=rng.randrange(30))] if game.adversaries else [],
    }  # fmt: skip
    return found | changes


def party(name: str, role: str, adversary: str | None, **changes: Any) -> dict[str, Any]:
    numbers = {"gas": 1000, "fees_wei": 7, "wei": 5, "steps": 9, "messages": 3, "bytes": 500, "refused": 0}
    return {"name": name, "role": role, "adversary": adversary, **numbers, **changes}


def duel(**changes: Any) -> dict[str, Any]:
    place = {"challenger": "auditor", "verdict": "challenger", "reason": "recomputed", "level": "values", "step": 4}
    numbers = {"leaf": 3, "instruction": "add", "rounds": 8, "moves": 20, "gas": 10**6, "bytes": 9000, "seconds": 300}
    return place | numbers | changes


def play(line: str) -> dict[str, Any]:
    """Plays at once; adversaries break the player in their own ways."""
    name = "".join(GameLine.parse(line, ADVERSARIES).adversaries)
    if name == "breaking":
        raise ValueError("expected a game,\n got none")
    if name == "dying":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hanging":
        time.sleep(60)
    if name == "slow":
        time.sleep(0.3)
    return result(line)


def play_unwritable(line: str) -> dict[str, Any]:
    return {"line": line, "seconds": float("nan")}
