"""The settings of a party: one TOML file in its folder, `party.toml`. Secrets come from the environment.

`TIEBREAK_PASSPHRASE` opens the key file. Every other setting may be overridden by `TIEBREAK_` and its name in capitals,
as in `TIEBREAK_HUB`, so that a container needs no file of its own.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from tiebreak.api.machine import Machine
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.terms import CONFIRMATIONS
from tiebreak.protocol.tags import Digest

FILE: Final = "party.toml"
ROLES: Final = ("client", "trainer", "auditor", "watcher")
PREFIX: Final = "TIEBREAK_"
ANY: Final = "any"


_ALL: Final = frozenset(ROLES)
_KEYED: Final = _ALL - {"watcher"}
_WORKING: Final = _ALL - {"client"}
_STAKING: Final = frozenset({"trainer", "auditor"})
_TRAINER, _AUDITOR, _WATCHING = frozenset({"trainer"}), frozenset({"auditor"}), frozenset({"auditor", "watcher"})
_TEXT: Final = """\
# The mailbox and library. It is trusted with nothing: what it says is checked.
hub

# The address of the hub's key, if another hub at this URL is to be refused; empty: any.
hub_key

# JSON-RPC of an Ethereum node: an http(s) URL or the path of an IPC socket; better several, separated by
# commas, of which one that is away or lies costs time. Empty: no chain; then the hub's signed receipts are
# the clock, and money is only counted on paper.
chain

# The address of the job board on that chain (`tiebreak chain deploy`).
board

# The block in which the board was created; following starts there.
first_block

# Blocks that must stand on a transaction's before it counts as sent for good.
confirmations

# Seconds between blocks.
block_seconds

# Seconds that a step of any job counts at least; terms are judged by what a trial step took.
step_seconds

# Seconds that the first two steps of a program may take, with all that comes before them. A party stays out
# of a job whose program takes longer, or more memory than there is.
trial_seconds

# How many times longer a step may take on the worst data (`tiebreak worst`).
slowdown

# The key file in this folder (`tiebreak key`). Its passphrase comes from TIEBREAK_PASSPHRASE, or is asked for.
key

# The price of gas, in gwei, at which the account should still pay for the dearest transaction of a game: with
# less than that it is too poor to play games, which is an error in the log.
spike_gwei

# Processes that train or replay at once, each for other jobs and with memory of its own: as many jobs as a
# trainer accepts at a time. If they share cores, step_seconds is that of a step while all of them work.
# Files, and the games of each job, have processes of their own.
processes

# Threads that torch may use in each process; 0: its own choice, or an equal share of the cores. No result
# depends on it.
threads

# The torch device; it is qualified first.
device

# Whether to compute without compiled kernels where there are none. Data can be made to take hundreds of times
# as long then, so that a move or a head comes too late.
uncompiled

# Serve Prometheus metrics on this port of 127.0.0.1; 0: do not.
metrics_port

# Log JSON, one object a line.
json_log

# Addresses of clients. A trainer needs them: it takes only their offers, or those of ["any"]. Others try
# their programs before those of strangers, who share what time is left.
clients

# The longest job that is taken; 0: any.
most_steps

# The most bytes that are fetched for one job; 0: no limit but the disk.
most_bytes

# The least reward of a job that is taken, in ether.
least_reward

# The largest bond of a seat, in ether, or "any". A pool takes as much for 24 days.
most_bond

# The most that is put up for one job, in ether, or "any": a trainer's stake, or an auditor's bonds and
# challenges, whose pools and seats leave as much for a challenge. Needed.
most_stake

# The most that is put up for all jobs and pools together, in ether, or "any".
most_exposed

# Ids of the jobs to follow; empty: every job.
jobs

# What a step of an audit costs you, in wei; seats that pay less are refused.
step_wei"""
"""The settings file of all roles, in the order of `Settings`: what each setting means, and its name."""


def _setting(default: Any, roles: frozenset[str]) -> Any:
    """A setting that the file of these roles has."""
    return field(default=default, metadata={"roles": roles})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one party; `_TEXT` says what they mean. Amounts are texts such as "0.25", in ether."""

    role: str
    folder: Path
    hub: str = _setting("http://127.0.0.1:8787", _ALL)
    hub_key: str = _setting("", _ALL)
    chain: str = _setting("", _ALL)
    board: str = _setting("", _ALL)
    first_block: int = _setting(0, _ALL)
    confirmations: int = _setting(CONFIRMATIONS, _ALL)
    block_seconds: int = _setting(12, _ALL)
    step_seconds: int = _setting(1, _ALL)
    trial_seconds: int = _setting(600, _WORKING)
    slowdown: int = _setting(1, _ALL)
    key: str = _setting("key.pem", _KEYED)
    spike_gwei: int = _setting(20, _KEYED)
    processes: int = _setting(1, _WORKING)
    threads: int = _setting(0, _WORKING)
    device: str = _setting("cpu", _WORKING)
    uncompiled: bool = _setting(False, _STAKING)
    metrics_port: int = _setting(0, _ALL)
    json_log: bool = _setting(False, _ALL)
    clients: tuple[str, ...] = _setting((), _WORKING)
    most_steps: int = _setting(0, _TRAINER)
    most_bytes: int = _setting(0, _WORKING)
    least_reward: str = _setting("0", _TRAINER)
    most_bond: str = _setting("any", _AUDITOR)
    most_stake: str = _setting("", _STAKING)
    most_exposed: str = _setting("any", _STAKING)
    jobs: tuple[str, ...] = _setting((), _WATCHING)
    step_wei: int = _setting(0, _AUDITOR)

    @property
    def path(self) -> Path:
        """The file that they were read from, or are written to."""
        return self.folder / FILE

    @property
    def machine(self) -> Machine:
        """The settings by which each process of the party computes."""
        uncompiled = self.uncompiled or self.role not in _STAKING
        return Machine(device=self.device, threads=self.threads or None, uncompiled=uncompiled)

    def wei(self, name: str) -> int:
        """An amount in wei. Raises `ConfigurationError`."""
        text = getattr(self, name)
        if (found := re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,18}))?", text)) is None:
            raise ConfigurationError(f"{self.path}: {name}: expected ether such as 0.25, got {text!r}")
        return int(found[1]) * 10**18 + int((found[2] or "0").ljust(18, "0"))

    def limit(self, name: str) -> int:
        """A limit in wei; 0 if it is "any", or not set. Raises `ConfigurationError`."""
        return 0 if getattr(self, name) in ("", ANY) else self.wei(name)

    def address(self, name: str) -> Address:
        """An address. Raises `ConfigurationError`."""
        return Address(_hex(self.path, name, getattr(self, name), 20))

    def addresses(self, name: str) -> tuple[Address, ...]:
        return tuple(Address(_hex(self.path, name, text, 20)) for text in getattr(self, name))

    def digests(self, name: str) -> tuple[Digest, ...]:
        return tuple(Digest(_hex(self.path, name, text, 32)) for text in getattr(self, name))


def _hex(path: Path, name: str, text: str, size: int) -> bytes:
    if (found := re.fullmatch(rf"(?:0x)?([0-9a-fA-F]{{{2 * size}}})", text)) is None:
        raise ConfigurationError(f"{path}: {name}: expected {2 * size} hexadecimal digits, got {text!r}")
    return bytes.fromhex(found[1])


def _settings_of(role: str) -> dict[str, Any]:
    """The settings that a role has, with their defaults."""
    return {one.name: one.default for one in fields(Settings) if role in one.metadata.get("roles", ())}


def template(role: str, **given: Any) -> str:
    """The text of a new settings file, with every setting of the role and what it means.

    given: values other than the defaults; those of settings that the role does not have are left out.
    """
    # JSON's texts, numbers, truth values and lists of texts are TOML's, too.
    lines = [f"# Settings of a tiebreak {role}. Start it with: tiebreak {role} run FOLDER", ""]
    defaults = _settings_of(role)
    for words, _, name in (block.rpartition("\n") for block in _TEXT.split("\n\n")):
        if name in defaults:
            lines += [words, f"{name} = {json.dumps(given.get(name, defaults[name]), ensure_ascii=False)}", ""]
    return "\n".join(lines)


def write(role: str, folder: Path, **given: Any) -> Settings:
    """Make the folder of a new party, with its settings file. Raises `ConfigurationError` if it has one."""
    path = folder / FILE
    if path.exists():
        raise ConfigurationError(f"expected a new folder for a {role}, got {folder}, which has a {FILE}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(template(role, **given))
    return read(role, folder, {})


def read(role: str, folder: Path, environment: Mapping[str, str] = MappingProxyType(os.environ)) -> Settings:
    """The settings of a party. Raises `ConfigurationError` for a setting that the role does not have."""
    path = folder / FILE
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"expected {path}, got none; make one with `tiebreak {role} init {folder}`") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: expected TOML, got a file that cannot be read: {error}") from error
    kinds = get_type_hints(Settings)
    known = _settings_of(role)
    for name in known:
        if (given := environment.get(PREFIX + name.upper())) is not None:
            found[name] = _from_text(given, kinds[name])
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in known:
            raise ConfigurationError(f"{path}: expected settings of a {role} ({', '.join(known)}), got {name}")
        values[name] = _checked(path, name, value, kinds[name])
    return Settings(role=role, folder=folder, **values)


def _from_text(text: str, kind: Any) -> Any:
    if kind is int:
        return int(text) if text.isdecimal() else text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    return text if kind is str else [item for item in text.split(",") if item]


def _checked(path: Path, name: str, value: Any, kind: Any) -> Any:
    if kind in (int, bool, str):
        if type(value) is not kind or (kind is int and value < 0):
            raise ConfigurationError(f"{path}: {name}: expected {_KINDS[kind]}, got {value!r}")
        return value
    if not isinstance(value, list) or not all(type(item) is str for item in value):
        raise ConfigurationError(f"{path}: {name}: expected a list of texts, got {value!r}")
    return tuple(value)


_KINDS: Final = {int: "a whole number", bool: "true or false", str: "a text"}
