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
    evidence    null, or what `tiebreak.engine.logged.calibration` measured: the fields of `Measurements`

People refer to a file by its digest: SHA-256 of its shortest encoding, with the fields in the order above.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.rounding import SumKind, check_tolerances, pack_tolerances
from tiebreak.protocol.strict_json import JsonObject

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
class MeasuredSums:
    """The measurements of one kind of sum.

    elements: the number that was compared. exact: how many of them were also compared with the exact sum.
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
class Measurements:
    """The record of a calibration. programs: their roots, hex. settings: a line for each variant."""

    programs: tuple[str, ...]
    steps: int
    orders: int
    seed: int
    margin: float
    share: float
    settings: tuple[str, ...]
    environment: tuple[str, ...]
    sums: Mapping[SumKind, MeasuredSums]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPolicy:
    """Thresholds and tolerances by kind of sum, from `tiebreak.calibrate` or from a file.

    precision: bits of results, 16 to 32. thresholds: the distance from a tie within which a sum is open, in units of
    the element's own error; None for the proven bound. tolerances: the distance from a tie within which a log decides,
    as in SPEC section 5.1. measurements: the record of the calibration; None for the proven bounds.

    Raises `ConfigurationError` for values that cannot be computed with.
    """

    precision: int
    thresholds: Mapping[SumKind, float | None]
    tolerances: Mapping[SumKind, int]
    measurements: Measurements | None = None

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
    def digest(self) -> str:
        """The hex digest that identifies the policy, measurements included."""
        return hashlib.sha256(json.dumps(self._as_json(), separators=(",", ":"), allow_nan=False).encode()).hexdigest()

    def logging(self) -> Logging:
        """The settings for the arithmetic."""
        return Logging(thresholds=dict(self.thresholds), tolerances=dict(self.tolerances))

    def encode(self) -> bytes:
        """The bytes of the policy file."""
        return json.dumps(self._as_json(), indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str = "policy") -> "LoggedPolicy":
        """Decodes a file that may be a stranger's. Raises `EncodingError`."""
        if len(data) > MAX_BYTES:
            raise EncodingError(f"{name}: expected at most {MAX_BYTES} bytes, got {len(data)}")
        top = JsonObject.parse(name, data, MAX_DEPTH)
        top.version("version", VERSION)
        precision = top.integer("precision", 0, 64)
        top.take("compute", f"{COMPUTE!r}, for no other format is supported; calibrate again", lambda x: x == COMPUTE)
        thresholds: dict[SumKind, float | None] = {}
        tolerances: dict[SumKind, int] = {}
        sums = top.inner("sums")
        for kind_name, kind in _NAMES.items():
            one = sums.inner(kind_name)
            thresholds[kind] = None if one.is_null("threshold") else _number(one, "threshold")
            tolerances[kind] = one.integer("tolerance", 0, 0xFF)
            one.finish()
        sums.finish()
        found = None if top.is_null("evidence") else _measurements(top.inner("evidence"))
        top.finish()
        try:
            return cls(precision=precision, thresholds=thresholds, tolerances=tolerances, measurements=found)
        except ConfigurationError as error:
            raise EncodingError(f"{name}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> "LoggedPolicy":
        """Reads a policy file. Raises `EncodingError` for one that is missing, malformed or not a plain file."""
        return cls.decode(read_file(Path(path), MAX_BYTES), str(path))

    def save(self, path: str | Path) -> None:
        """Writes the whole policy file or nothing. Raises `StorageError`."""
        write_file(Path(path), self.encode())

    def _as_json(self) -> dict[str, Any]:
        evidence = None
        if (found := self.measurements) is not None:
            sums = {name: asdict(found.sums[kind]) for name, kind in _NAMES.items() if kind in found.sums}
            evidence = asdict(found) | {"sums": sums}
        return {
            "version": VERSION,
            "precision": self.precision,
            "compute": COMPUTE,
            "sums": {
                name: {"threshold": self.thresholds[kind], "tolerance": self.tolerances[kind]}
                for name, kind in _NAMES.items()
            },
            "evidence": evidence,
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


def _number(data: JsonObject, key: str, high: float = 2.0**1023) -> float:
    return float(data.take(key, f"a number from 0 to {high}", lambda x: type(x) in (int, float) and 0 <= x <= high))


def _are_texts(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MAX_LIST:
        return False
    return all(isinstance(v, str) and len(v) <= MAX_TEXT and v.isascii() and v.isprintable() for v in values)


_SHARES: Final = {"share", "logged", "resolved"}


def _fields(kind: type[Measurements | MeasuredSums], data: JsonObject) -> dict[str, Any]:
    """The fields of a dataclass that are not objects themselves, each read by its type."""
    found: dict[str, Any] = {}
    for name, of in ((field.name, field.type) for field in fields(kind)):
        if of is int:
            found[name] = data.integer(name, 0, (1 << 63) - 1)
        elif of is float:
            found[name] = _number(data, name, 1.0 if name in _SHARES else 2.0**1023)
        elif of == tuple[str, ...]:
            expected = f"a list of at most {MAX_LIST} lines of at most {MAX_TEXT} printable characters"
            found[name] = tuple(data.take(name, expected, _are_texts))
    return found


def _measurements(data: JsonObject) -> Measurements:
    inner, sums = data.inner("sums"), dict[SumKind, MeasuredSums]()
    for name, kind in _NAMES.items():
        if name in inner:
            one = inner.inner(name)
            sums[kind] = MeasuredSums(**_fields(MeasuredSums, one))
            one.finish()
    inner.finish()
    found = Measurements(**_fields(Measurements, data), sums=sums)
    data.finish()
    return found
