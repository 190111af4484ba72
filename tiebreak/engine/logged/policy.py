"""The policy file: the thresholds and tolerances of a run of policy `logged`, and the measurements behind them.

A job fixes the precision and the tolerances, because they define what a result *is* (SPEC section 5.1). The thresholds
only say how a party computes: how far its own value may be from the exact sum. A party whose thresholds are too small
for its machine gets wrong values and loses by them, so it should rely on its own measurement or on the proven bounds,
and not on a stranger's file. JSON, at most 64 KiB, fields in any order and no others:

    version     1
    precision   16 ... 32, as in the job
    compute     "float64": the format in which sums are computed; no other is known
    sums        for each of "plain", "products", "scatter": {"threshold", "tolerance"}
                threshold: > 0, in units of u times the norm of the element's terms; null: the proven bound
                tolerance: n of the job, 0 or 2 ... 64
    evidence    null, or what `tiebreak.engine.logged.calibration` measured: the fields of `Evidence`

People refer to a file by its digest: SHA-256 of its shortest encoding, with the fields in the order above.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

from tiebreak.engine.arithmetic.near_ties import Logging
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.rounding import SumKind, check_tolerances, pack_tolerances
from tiebreak.protocol.strict_json import parse_json

POLICY: Final = "policy.json"
"""The name of the file in a run directory."""
VERSION: Final = 1
MAX_BYTES: Final = 1 << 16
MAX_DEPTH: Final = 8
"""The most nested brackets: a deeper file can exhaust the C stack of the JSON parser."""
MAX_LIST: Final = 256
MAX_TEXT: Final = 200
MAX_THRESHOLD: Final = 2.0**60
COMPUTE: Final = "float64"
_NAMES: Final = {kind.name.lower(): kind for kind in SumKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindEvidence:
    """The measurements of one kind of sum.

    elements: the number compared between settings. exact: how many of them were also compared with the exact sum.
    divergence: the largest, in units of u times the element's norm. error: the largest distance from an exact sum, in
    the same units. of_gap: the largest divergence as a share of the gap at the element. of_exponent: the same as a
    share of 2^exponent of the element, the unit of the paper's tau. logged: the share of all elements that the policy
    logs. resolved: the share that is open but computed exactly instead.
    """

    elements: int
    exact: int
    divergence: float
    error: float
    of_gap: float
    of_exponent: float
    logged: float
    resolved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The record of a calibration. programs: roots of the programs, hex. settings, environment: one line each."""

    programs: tuple[str, ...]
    steps: int
    orders: int
    seed: int
    margin: float
    share: float
    settings: tuple[str, ...]
    environment: tuple[str, ...]
    sums: Mapping[SumKind, KindEvidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPolicy:
    """Thresholds and tolerances by kind of sum. Raises `ConfigurationError` for values that cannot be computed with."""

    precision: int
    thresholds: Mapping[SumKind, float | None]
    tolerances: Mapping[SumKind, int]
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        if not MIN_PRECISION <= self.precision <= MAX_PRECISION:
            raise ConfigurationError(
                f"expected a precision of {MIN_PRECISION} to {MAX_PRECISION} bits, got {self.precision}"
            )
        for name, kind in _NAMES.items():
            if kind not in self.thresholds or kind not in self.tolerances:
                raise ConfigurationError(f"expected a threshold and a tolerance of {name} sums, got none")
            threshold = self.thresholds[kind]
            if threshold is not None and not 0 < threshold <= MAX_THRESHOLD:
                raise ConfigurationError(
                    f"expected a threshold of {name} sums above 0 and at most {MAX_THRESHOLD:g}, got {threshold}"
                )
        try:
            check_tolerances(self.tolerances_packed)
        except VerificationError as error:
            raise ConfigurationError(str(error)) from error

    @property
    def tolerances_packed(self) -> int:
        """The tolerances as the job's field."""
        return pack_tolerances(dict(self.tolerances))

    @property
    def proven(self) -> bool:
        """Whether every threshold is the proven bound, so that nothing depends on a measurement."""
        return all(threshold is None for threshold in self.thresholds.values())

    @property
    def digest(self) -> str:
        """The hex digest that identifies the policy, evidence included."""
        return hashlib.sha256(json.dumps(self._as_data(), separators=(",", ":"), allow_nan=False).encode()).hexdigest()

    def logging(self) -> Logging:
        """The settings for the arithmetic."""
        return Logging(thresholds=dict(self.thresholds), tolerances=dict(self.tolerances))

    def encode(self) -> bytes:
        """The bytes of the policy file."""
        return json.dumps(self._as_data(), indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str = "policy") -> "LoggedPolicy":
        """Decodes a file that may be a stranger's. Raises `EncodingError`."""
        top = _Object(name, _parse(name, data))
        if (version := top.integer("version", 0, 1 << 16)) != VERSION:
            raise EncodingError(f"{name}: expected version {VERSION}, got {version}")
        precision = top.integer("precision", 0, 64)
        if (compute := top.text("compute")) != COMPUTE:
            raise EncodingError(
                f"{name}: expected sums computed in {COMPUTE}, got {compute!r}, which is no longer supported; "
                f"calibrate again"
            )
        thresholds: dict[SumKind, float | None] = {}
        tolerances: dict[SumKind, int] = {}
        sums = top.inner("sums")
        for kind_name, kind in _NAMES.items():
            one = sums.inner(kind_name)
            thresholds[kind] = one.optional_number("threshold")
            tolerances[kind] = one.integer("tolerance", 0, 0xFF)
            one.finish()
        sums.finish()
        evidence = top.optional("evidence")
        found = None if evidence is None else _read_evidence(evidence)
        top.finish()
        try:
            return cls(precision=precision, thresholds=thresholds, tolerances=tolerances, evidence=found)
        except ConfigurationError as error:
            raise EncodingError(f"{name}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> "LoggedPolicy":
        """Reads a policy file. Raises `EncodingError` for one that is missing, malformed or not a plain file."""
        return cls.decode(read_file(path, MAX_BYTES), str(path))

    def save(self, path: Path) -> None:
        """Writes the whole policy file or nothing. Raises `StorageError`."""
        write_file(path, self.encode())

    def _as_data(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "precision": self.precision,
            "compute": COMPUTE,
            "sums": {
                name: {"threshold": _as_float(self.thresholds[kind]), "tolerance": self.tolerances[kind]}
                for name, kind in _NAMES.items()
            },
            "evidence": None if self.evidence is None else _evidence_as_data(self.evidence),
        }


def policy_of(run: RunDirectory) -> LoggedPolicy | None:
    """The thresholds of the party that computes a run; None stands for the proven bounds.

    They hold for that party's machine only, so nobody else should rely on them. Raises `EncodingError` for a malformed
    file.
    """
    with run.folder() as folder:
        if not folder.holds(POLICY):
            return None
        return LoggedPolicy.decode(folder.read(POLICY, MAX_BYTES), str(run.path / POLICY))


def _as_float(threshold: float | None) -> float | None:
    return None if threshold is None else float(threshold)


def _evidence_as_data(evidence: Evidence) -> dict[str, Any]:
    data = {field.name: getattr(evidence, field.name) for field in fields(Evidence)}
    return data | {
        "programs": list(evidence.programs),
        "margin": float(evidence.margin),
        "share": float(evidence.share),
        "settings": list(evidence.settings),
        "environment": list(evidence.environment),
        "sums": {
            name: {field.name: getattr(evidence.sums[kind], field.name) for field in fields(KindEvidence)}
            for name, kind in _NAMES.items()
            if kind in evidence.sums
        },
    }


def _parse(name: str, data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise EncodingError(f"{name}: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        return parse_json(data, MAX_DEPTH)
    except ValueError as error:  # json.JSONDecodeError, UnicodeDecodeError, or integers of thousands of digits
        raise EncodingError(f"{name}: expected JSON, got something else: {error}") from error


class _Object:
    """A JSON object. Every field must be taken once, and none may be left over."""

    def __init__(self, name: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise EncodingError(f"{name}: expected an object, got {type(data).__name__}")
        self._name = name
        self._left = dict(data)

    def _take(self, key: str) -> Any:
        if key not in self._left:
            raise EncodingError(f"{self._name}: expected a field {key!r}, got none")
        return self._left.pop(key)

    def _wrong(self, key: str, expected: str, found: object) -> EncodingError:
        return EncodingError(f"{self._name}, {key}: expected {expected}, got {str(found)[:MAX_TEXT]!r}")

    def integer(self, key: str, low: int, high: int) -> int:
        """An integer from low to high."""
        value = self._take(key)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"an integer from {low} to {high}", value)
        return value

    def number(self, key: str, high: float = float("inf")) -> float:
        """A finite number from 0 to high."""
        value = self._take(key)
        if type(value) not in (int, float) or not 0 <= value <= min(high, 2.0**1023) or not isfinite(value):
            raise self._wrong(key, f"a number from 0 to {high}", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A number or null."""
        if key in self._left and self._left[key] is None:
            self._left.pop(key)
            return None
        return self.number(key)

    def text(self, key: str) -> str:
        """Printable ASCII."""
        return self._check_text(key, self._take(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of printable ASCII strings."""
        value = self._take(key)
        if not isinstance(value, list) or len(value) > MAX_LIST:
            raise self._wrong(key, f"a list of at most {MAX_LIST}", value)
        return tuple(self._check_text(key, each) for each in value)

    def _check_text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) > MAX_TEXT or not (value.isascii() and value.isprintable()):
            raise self._wrong(key, f"at most {MAX_TEXT} printable characters", value)
        return value

    def inner(self, key: str) -> "_Object":
        """A nested object."""
        return _Object(f"{self._name}, {key}", self._take(key))

    def optional(self, key: str) -> "_Object | None":
        """A nested object or null."""
        value = self._take(key)
        return None if value is None else _Object(f"{self._name}, {key}", value)

    def has(self, key: str) -> bool:
        """Whether there is such a field."""
        return key in self._left

    def finish(self) -> None:
        """Raises an error if a field was not taken."""
        if self._left:
            raise EncodingError(f"{self._name}: expected no other fields, got {min(self._left)[:MAX_TEXT]!r}")


_COUNT: Final = (1 << 63) - 1


def _read_evidence(data: _Object) -> Evidence:
    inner = data.inner("sums")
    sums = {kind: _read_kind(inner.inner(name)) for name, kind in _NAMES.items() if inner.has(name)}
    inner.finish()
    found = Evidence(
        programs=data.texts("programs"),
        steps=data.integer("steps", 0, _COUNT),
        orders=data.integer("orders", 0, _COUNT),
        seed=data.integer("seed", 0, _COUNT),
        margin=data.number("margin"),
        share=data.number("share", 1.0),
        settings=data.texts("settings"),
        environment=data.texts("environment"),
        sums=sums,
    )
    data.finish()
    return found


def _read_kind(data: _Object) -> KindEvidence:
    found = KindEvidence(
        elements=data.integer("elements", 0, _COUNT),
        exact=data.integer("exact", 0, _COUNT),
        divergence=data.number("divergence"),
        error=data.number("error"),
        of_gap=data.number("of_gap"),
        of_exponent=data.number("of_exponent"),
        logged=data.number("logged", 1.0),
        resolved=data.number("resolved", 1.0),
    )
    data.finish()
    return found
