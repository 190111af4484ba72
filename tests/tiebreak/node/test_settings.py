"""A party's settings and its log: what `init` writes is read again, all else is refused by name; an event is a line."""

import ast
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from threading import Event

import pytest

from tests.source_tree import ROOT, committed_files
from tiebreak.node import settings
from tiebreak.node.log import Log
from tiebreak.node.parties import AcceptancePolicy
from tiebreak.node.process import floor_of, means_of, open_party, policy
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.gas import EXECUTED, UNMEASURED, gas_limit
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES


@pytest.mark.parametrize("role", settings.ROLES)
def test_a_chain_party_without_a_board_address_is_refused_before_writing(tmp_path: Path, role: str) -> None:
    given = {"trainer": {"clients": (settings.ANY,), "most_stake": settings.ANY}, "auditor": {"most_stake": "1"}}
    made = settings.write(role, tmp_path / role, chain="http://127.0.0.1:9", **given.get(role, {}))
    with pytest.raises(ConfigurationError, match="board: expected 40 hexadecimal digits, got ''"):
        open_party(made, None if role == "watcher" else PrivateKey.from_int(7), Event())
    assert [path.name for path in made.folder.iterdir()] == ["party.toml"]


@pytest.mark.parametrize("role", settings.ROLES)
def test_settings_written_by_init_read_back_unchanged(tmp_path: Path, role: str) -> None:
    folder = tmp_path / role
    given = {"hub": "http://hub:1", "board": "0x" + "ab" * 20, "confirmations": 7}
    made = settings.write(role, folder, **given, threads=1, uncompiled=True)  # a client and a watcher have neither
    assert made == settings.read(role, folder, {})
    assert (made.hub, made.address("board"), made.confirmations) == ("http://hub:1", b"\xab" * 20, 7)
    text = made.path.read_text()
    assert all(line.startswith("#") or " = " in line or not line for line in text.splitlines())
    assert ("\nkey = " in text) is (role != "watcher")  # a watcher has none
    assert re.findall(r"(?m)^(\w+) = ", text) == list(settings._settings_of(role)), "each has its words"
    assert "cheat" not in text


def test_staking_roles_require_compiled_kernels_by_default(tmp_path: Path) -> None:
    for role in settings.ROLES:
        written = settings.write(role, tmp_path / role)
        assert written.machine.uncompiled == (role in ("client", "watcher"))
    assert settings.read("trainer", tmp_path / "trainer", {"TIEBREAK_UNCOMPILED": "true"}).machine.uncompiled


def test_init_overwrites_no_settings_and_missing_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="tiebreak auditor init"):
        settings.read("auditor", tmp_path, {})
    settings.write("trainer", tmp_path)
    with pytest.raises(ConfigurationError, match="expected a new folder for a trainer"):
        settings.write("trainer", tmp_path)


def test_staking_parties_must_name_clients_and_a_stake_limit(tmp_path: Path) -> None:
    """They are named before anything starts; whoever serves anybody has to say so, too."""
    open_to_all, client = {"clients": (settings.ANY,), "most_stake": settings.ANY}, f"0x{'ab' * 20}"
    stakes = ({**open_to_all, "most_stake": stake} for stake in ("", "0"))
    for number, given in enumerate(({}, open_to_all | {"clients": ()}, *stakes)):
        made = settings.write("trainer", tmp_path / str(number), **given)
        with pytest.raises(ConfigurationError, match="expected clients and most_stake, got none; write whose offers"):
            open_party(made, PrivateKey.from_int(7), Event())
    assert policy(settings.write("trainer", tmp_path / "open", **open_to_all)) == AcceptancePolicy()
    for number, stake in enumerate(("", "0")):
        unlimited = settings.write("auditor", tmp_path / f"auditor{number}", most_stake=stake)
        with pytest.raises(ConfigurationError, match="expected most_stake, got none; write what this auditor may"):
            open_party(unlimited, PrivateKey.from_int(7), Event())
    limited = means_of(settings.write("auditor", tmp_path / "limited", most_stake="0.5", most_bond="2"), 7, lambda: 0)
    assert (limited.most_stake, limited.most_bond, limited.most_exposed) == (10**18 // 2, 2 * 10**18, 0)
    named = settings.write("trainer", tmp_path / "named", clients=(client,), most_stake="0.5")
    assert policy(named) == AcceptancePolicy(clients=(Address(b"\xab" * 20),))
    assert means_of(named, 7, lambda: 0).most_stake == 10**18 // 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hub = 7", "hub: expected a text, got 7"),
        ("confirmations = -1", "confirmations: expected a whole number, got -1"),
        ("confirmations = true", "confirmations: expected a whole number, got True"),
        ("json_log = 1", "json_log: expected true or false, got 1"),
        ("clients = [1]", r"clients: expected a list of texts, got \[1\]"),
        ("jobs = []", "expected settings of a trainer .*, got jobs"),
        ("surprise = 1", "got surprise"),
        ('cheat = "rate"', "got cheat"),
        ("hub = ", "expected TOML"),
    ],
)
def test_unknown_or_mistyped_settings_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / settings.FILE).write_text(line + "\n")
    with pytest.raises(ConfigurationError, match=message):
        settings.read("trainer", tmp_path, {})


def test_environment_variables_override_the_settings_file(tmp_path: Path) -> None:
    settings.write("trainer", tmp_path, hub="http://file")
    names = {"TIEBREAK_HUB": "http://environment", "TIEBREAK_MOST_STEPS": "12", "TIEBREAK_JSON_LOG": "true"}
    found = settings.read("trainer", tmp_path, {**names, "TIEBREAK_CLIENTS": "0x" + "01" * 20, "TIEBREAK_JOBS": "x"})
    assert (found.hub, found.most_steps, found.json_log) == ("http://environment", 12, True)
    assert found.addresses("clients") == (b"\x01" * 20,)
    assert settings.read("trainer", tmp_path, {"TIEBREAK_CHEAT": "rate"}) == settings.read("trainer", tmp_path, {})
    with pytest.raises(ConfigurationError, match="most_steps: expected a whole number, got 'many'"):
        settings.read("trainer", tmp_path, {"TIEBREAK_MOST_STEPS": "many"})


def test_ether_amounts_are_exact_and_invalid_ones_are_refused(tmp_path: Path) -> None:
    for text, wei in (("0.05", 5 * 10**16), ("1", 10**18), ("0.000000000000000001", 1)):
        assert settings.write("trainer", tmp_path / text, least_reward=text).wei("least_reward") == wei
    for number, text in enumerate(("", "-1", "1e3", "0.0000000000000000001")):
        found = settings.write("trainer", tmp_path / f"wrong {number}", least_reward=text)
        with pytest.raises(ConfigurationError, match="least_reward: expected ether"):
            found.wei("least_reward")


def test_malformed_addresses_and_job_ids_are_refused(tmp_path: Path) -> None:
    found = settings.write("auditor", tmp_path, board="0x12", jobs=("ab",))
    with pytest.raises(ConfigurationError, match="board: expected 40 hexadecimal digits"):
        found.address("board")
    with pytest.raises(ConfigurationError, match="jobs: expected 64 hexadecimal digits"):
        found.digests("jobs")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_event_is_one_line_without_control_characters(as_json: bool) -> None:
    stream = io.StringIO()
    notes = Log("trainer", as_json=as_json, stream=stream)
    notes.warn("hub", "two\nlines \x1b[31m and a bell \x07", job="ab")
    notes.debug("steps", "is not asked for")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\x07" not in line
    if as_json:
        found = json.loads(line)
        assert (found["level"], found["who"], found["event"], found["job"]) == ("WARNING", "trainer", "hub", "ab")
    assert notes.counts == {("WARNING", "hub"): 1}


def test_balance_floor_covers_the_costliest_transaction_at_the_spike_price(tmp_path: Path) -> None:
    found = settings.write("auditor", tmp_path, spike_gwei=35)
    dearest = gas_limit(Call("", raw=bytes([1]) * MAX_MESSAGE_BYTES)) + (EXECUTED["prove"] - UNMEASURED) * 3 // 2
    assert max(EXECUTED.values()) == EXECUTED["prove"]
    assert floor_of(found, 7) == dearest * 35 * 10**9 + 70, "and its data on a rollup at ten times today's fee"


HABITS = ("confirmations", "block_seconds", "step_seconds", "slowdown", "trial_seconds", "spike_gwei")
"""Settings that decide when a party acts, and whether it takes part; the others are permissions, places and cores."""
DEVIATIONS = {
    ("tiebreak/lab/network/local_network.py", "step_seconds"): "terms short enough to watch: measured steps count",
    ("tests/lab/network/test_driver.py", "block_seconds"): "its chain has blocks of one second",
    ("tests/tiebreak/node/test_settings.py", "confirmations"): "reads back what was written",
    ("tests/tiebreak/node/test_settings.py", "spike_gwei"): "reads back what was written",
    ("tests/tiebreak/node/test_workers.py", "trial_seconds"): "a trial that takes too long ends",
    ("tests/tiebreak/node/test_board_source.py", "confirmations"): "three blocks vanish at a time",
    ("tests/tiebreak/node/test_board_source_anvil.py", "confirmations"): "three blocks vanish at a time",
    ("tests/chain/test_outbox.py", "confirmations"): "counts the blocks on a transaction's",
    ("tests/protocol/test_terms.py", "slowdown"): "terms follow it",
    ("tests/protocol/test_terms.py", "step_seconds"): "terms follow it",
    ("tests/lab/sim/adversaries/test_builders.py", "block_seconds"): "a move to the second needs a block a second",
    ("tests/lab/sim/world/test_clocks.py", "block_seconds"): "clocks to the second, and a slow chain",
    ("tiebreak/api/agreement/offers.py", "step_seconds"): "what a trial step took, as parties judge terms",
    ("tiebreak/cli/agree.py", "step_seconds"): "the measured seconds, printed",
    ("tests/tiebreak/node/village.py", "confirmations"): "hands on what a test names here",
    ("tiebreak/cli/chain.py", "block_seconds"): "a chain's, not a party's setting",
    ("tiebreak/node/parties.py", "step_seconds"): "what a trial step took, but no less than the setting",
}
"""Where parties have other settings than `init` gives them, and why."""


DEFAULTS = {one.name: one.default for one in fields(settings.Settings) if one.name in HABITS}


def is_same(name: str, value: str, source: str) -> bool:
    """Whether a value is the setting's default, or hands on what has the same name."""
    handed = value.rpartition(".")[2]
    assigned = re.findall(r"(?m)^([A-Z_, ]+?)(?:: Final)? = ([\d, ]+)$", source)
    numbers = dict(pair for left, right in assigned for pair in zip(left.split(", "), right.split(", "), strict=False))
    return handed.lower() == name or str(DEFAULTS[name]) in (value, numbers.get(handed))


def given_in(source: str) -> Iterator[tuple[str, str]]:
    """Every value that a call or a dictionary gives to one of the settings."""
    for node in ast.walk(ast.parse(source)):
        pairs = [(node.arg, node.value)] if isinstance(node, ast.keyword) else []
        if isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
        yield from ((name, ast.unparse(value)) for name, value in pairs if name in HABITS)


def test_tests_use_the_default_settings_unless_a_reason_is_listed(cases: Callable[[], None]) -> None:
    """Once, a setting that only tests and `up` changed hid that with the default every lie was paid."""
    assert set(DEFAULTS) == set(HABITS)
    found = set()
    for path in committed_files():
        place = str(path.relative_to(ROOT))
        if path.suffix != ".py" or not place.startswith(("tests/", "tiebreak/")):
            continue
        source = path.read_text()
        if any(name in source for name in HABITS):
            found |= {(place, name) for name, value in given_in(source) if not is_same(name, value, source)}
            cases()
    assert found - set(DEVIATIONS) == set(), "expected a setting of `init`, or a reason in DEVIATIONS"
    here = {key for key in DEVIATIONS if (ROOT / key[0]).exists()}  # the lab may be deleted
    assert here - found == set(), "expected each reason to be needed"
    assert "TIEBREAK_CONFIRMATIONS" not in (ROOT / "docs" / "operate.md").read_text()
