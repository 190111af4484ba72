"""The committed gas limits against everything that the repository has measured."""

import json
import re
from pathlib import Path

from tests.chain.support import JOB, RUN
from tiebreak.protocol.chain.abi import entries
from tiebreak.protocol.chain.artifacts import BOARD, GAMES, load_artifact
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.gas import BASE, EXECUTED, MOST, UNMEASURED, gas_limit
from tiebreak.protocol.packing import camel_case
from tiebreak.protocol.parties import transactions as tx

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"first head": "postHead", "post head": "postHead"}


def sending() -> set[str]:
    """The functions that a party sends transactions to."""
    found = [e for name in (BOARD, GAMES) for e in load_artifact(name).abi if e["type"] == "function"]
    only_board = {"begin", "gameEnded", "gameVoided"}  # what the contracts tell each other
    return {e["name"] for e in found if e["stateMutability"] in ("nonpayable", "payable")} - only_board


def measured() -> list[tuple[str, float]]:
    """Function and gas, of every committed measurement of a whole transaction."""
    snapshot = json.loads((ROOT / "contracts/snapshots/GameGas.json").read_text())
    found = [(re.sub(r"^logged ", "", name).split(" ")[0], float(gas)) for name, gas in snapshot.items()]
    for name in ("board", "million_steps", "dispute"):
        for row in json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())["rows"]:
            if row["metric"].startswith("gas: "):
                what = row["metric"].removeprefix("gas: ")
                found.append((NAMES.get(what, camel_case(what.replace(" ", "_"))), row["value"]))
    leaves = re.findall(r"test_gas_\w+\(\) \(gas: (\d+)\)", (ROOT / "contracts/.gas-snapshot").read_text())
    return found + [("prove", float(gas)) for gas in leaves]


def test_each_function_has_a_measured_limit() -> None:
    assert set(EXECUTED) <= set(entries("function"))
    assert sending() - set(EXECUTED) == set()


def test_measured_gas_never_exceeds_the_committed_table() -> None:
    rows = [(name, gas) for name, gas in measured() if name in EXECUTED]
    assert len(rows) > 80
    assert len({name for name, _ in rows}) >= 15
    assert [(name, gas) for name, gas in rows if gas > EXECUTED[name]] == []


def test_gas_limit_follows_from_the_call_alone() -> None:
    settle = Call.of(tx.Settle(job_id=JOB.id))
    zeros = settle.data.count(0)
    calldata = 10 * zeros + 40 * (len(settle.data) - zeros)
    assert gas_limit(settle) == BASE + calldata + EXECUTED["settle"] * 3 // 2
    assert gas_limit(Call("", raw=bytes(8))) == BASE + 80 + UNMEASURED * 3 // 2
    assert gas_limit(Call("", raw=RUN * (1 << 14))) == MOST
