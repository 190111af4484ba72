"""The policy file: one meaning per file, and nothing but finite numbers in their ranges gets in."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.engine.logged.calibration import proven_policy
from tiebreak.engine.logged.policy import MAX_BYTES, MAX_DEPTH, VERSION, LoggedPolicy, MeasuredSums, Measurements
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.rounding import SumKind, tolerance_of

NUMBERS = st.floats(0, 1e300, allow_subnormal=True)
COUNTS = st.integers(0, (1 << 63) - 1)
SHARES = st.floats(0, 1)
LINES = st.lists(
    st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="[]{}"), max_size=200), max_size=5
).map(tuple)
KINDS = st.builds(
    MeasuredSums, elements=COUNTS, exact=COUNTS, divergence=NUMBERS, error=NUMBERS, of_gap=NUMBERS,
    of_exponent=NUMBERS, logged=SHARES, resolved=SHARES,
)  # fmt: skip
MEASUREMENTS = st.builds(
    Measurements, programs=LINES, steps=COUNTS, orders=COUNTS, seed=COUNTS, margin=NUMBERS, share=SHARES,
    settings=LINES, environment=LINES, sums=st.dictionaries(st.sampled_from(SumKind), KINDS),
)  # fmt: skip
POLICIES = st.builds(
    LoggedPolicy,
    precision=st.integers(16, 24),
    thresholds=st.fixed_dictionaries(
        dict.fromkeys(SumKind, st.none() | st.floats(0, 2.0**60, exclude_min=True, allow_subnormal=True))
    ),
    tolerances=st.fixed_dictionaries(dict.fromkeys(SumKind, st.just(0) | st.integers(2, 64))),
    measurements=st.none() | MEASUREMENTS,
)


def measured() -> LoggedPolicy:
    kind = MeasuredSums(
        elements=5, exact=2, divergence=1.5, error=0.5, of_gap=0.25, of_exponent=1e-9, logged=1e-6, resolved=0.0
    )
    measurements = Measurements(
        programs=("ab" * 32,), steps=3, orders=2, seed=0, margin=8.0, share=0.99, settings=("cpu",),
        environment=("torch 2",), sums={SumKind.PLAIN: kind},
    )  # fmt: skip
    return LoggedPolicy(
        precision=32,
        thresholds={SumKind.PLAIN: 12.0, SumKind.PRODUCTS: 48.5, SumKind.SCATTER: None},
        tolerances={SumKind.PLAIN: 9, SumKind.PRODUCTS: 11, SumKind.SCATTER: 0}, measurements=measurements,
    )  # fmt: skip


def fields(policy: LoggedPolicy | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((policy or measured()).encode())
    return found


def decode(data: object) -> LoggedPolicy:
    return LoggedPolicy.decode(json.dumps(data).encode())


@given(POLICIES)
def test_logged_policies_round_trip_through_their_encoding(policy: LoggedPolicy) -> None:
    read = LoggedPolicy.decode(policy.encode())
    assert read == policy
    assert read.digest == policy.digest
    assert read.encode() == policy.encode()


def test_json_layout_and_field_order_do_not_change_a_policys_digest() -> None:
    policy = measured()
    turned = dict(reversed(fields(policy).items()))
    assert decode(turned).digest == policy.digest
    turned["sums"]["plain"]["threshold"] = 12  # the same number
    assert decode(turned).digest == policy.digest
    turned["sums"]["plain"]["threshold"] = 12.5
    assert decode(turned).digest != policy.digest


def test_a_policy_gives_thresholds_to_arithmetic_and_tolerances_to_jobs() -> None:
    policy = measured()
    logging = policy.logging()
    assert logging.thresholds == {SumKind.PLAIN: 12.0, SumKind.PRODUCTS: 48.5, SumKind.SCATTER: None}
    assert [logging.logs(kind) for kind in SumKind] == [True, True, False]
    assert [tolerance_of(policy.tolerances_packed, kind) for kind in SumKind] == [9, 11, 0]
    assert set(proven_policy(32).thresholds.values()) == {None}


def test_policy_files_round_trip_and_unreadable_ones_are_refused(tmp_path: Path) -> None:
    path, policy = tmp_path / "policy.json", measured()
    policy.save(path)
    assert LoggedPolicy.load(path) == policy
    path.unlink()
    with pytest.raises(EncodingError, match="cannot be read"):
        LoggedPolicy.load(path)
    os.mkfifo(path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(EncodingError, match="plain file"):
        LoggedPolicy.load(path)
    path.unlink()
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(EncodingError, match=f"at most {MAX_BYTES} bytes"):
        LoggedPolicy.load(path)


WRONG = {
    "version": [0, VERSION + 1, True, "1", None],
    "precision": [15, 33, 24.0, True, None, -1],
    "compute": ["float32", "float16", 64, "", "x" * 201, "float64\n", None],
    "sums": [None, [], {}, {"plain": {}}],
    "sums.plain": [None, {}],
    "sums.plain.threshold": [0, 0.0, -1, True, "8", [8], 2.0**61, 10**400],
    "sums.products.tolerance": [1, 65, 256, -1, 9.0, True, None],
    "evidence": [[], "none", {}],
    "evidence.steps": [-1, 1 << 63, 1.0, False],
    "evidence.share": [1.5, -0.1, "1"],
    "evidence.margin": [-1, None],
    "evidence.settings": ["cpu", [1], ["x" * 201], ["\u00e9"], ["a\nb"], ["cpu"] * 257],
    "evidence.sums": [None, {"plane": {}}, {"plain": {}}],
    "evidence.sums.plain.elements": [1.5, -1],
    "evidence.sums.plain.divergence": [-1.0, None, 10**400],
    "evidence.sums.plain.logged": [1.1],
}


@pytest.mark.parametrize(("where", "value"), [(where, value) for where, values in WRONG.items() for value in values])
def test_policy_fields_out_of_range_are_refused(where: str, value: object) -> None:
    data = fields()
    at, *path = [data], *where.split(".")
    inner: Any = at[0]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(EncodingError, match="expected"):
        decode(data)


@pytest.mark.parametrize("where", ["", "sums", "sums.plain", "evidence", "evidence.sums", "evidence.sums.plain"])
def test_policies_with_unknown_or_missing_fields_are_refused(where: str) -> None:
    def at(data: dict[str, Any]) -> dict[str, Any]:
        for name in filter(None, where.split(".")):
            data = data[name]
        return data

    data = fields()
    at(data)["more"] = 1
    with pytest.raises(EncodingError, match="more"):
        decode(data)
    for name in at(fields()):
        if where == "evidence.sums":
            continue  # a kind that was not seen is left out
        data = fields()
        del at(data)[name]
        with pytest.raises(EncodingError, match=f"expected a field '{name}', got none"):
            decode(data)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"1", b"null", b"\xff\xfe", b'{"version": NaN}', b'{"version": Infinity}',
        b'{"version": 1, "version": 1}', b'{"version": ' + b"9" * 5000 + b"}", b"[" * 60000,
    ],
)  # fmt: skip
def test_file_content_that_is_no_policy_is_refused(content: bytes) -> None:
    with pytest.raises(EncodingError, match="expected"):
        LoggedPolicy.decode(content)


def test_policies_with_infinite_numbers_or_deep_nesting_are_refused() -> None:
    text = measured().encode().decode()
    assert "48.5" in text
    with pytest.raises(EncodingError, match="expected"):
        LoggedPolicy.decode(text.replace("48.5", "1e999").encode())
    nested = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    with pytest.raises(EncodingError, match=f"at most {MAX_DEPTH} brackets inside each other"):
        LoggedPolicy.decode(nested)


@given(st.integers(0, 1 << 14), st.integers(0, 255))
def test_a_policy_with_a_changed_byte_is_refused_or_still_valid(place: int, byte: int) -> None:
    content = bytearray(measured().encode())
    content[place % len(content)] = byte
    try:
        read = LoggedPolicy.decode(bytes(content))
    except EncodingError:
        return
    assert LoggedPolicy.decode(read.encode()) == read


def test_policies_with_unusable_values_are_refused() -> None:
    thresholds, tolerances = dict.fromkeys(SumKind, 8.0), dict.fromkeys(SumKind, 8)

    def make(**other: Any) -> None:
        given = {"precision": 32, "thresholds": thresholds, "tolerances": tolerances}
        LoggedPolicy(**(given | other))

    make()
    for other, text in [
        ({"precision": 15}, "precision of 16 to 32"),
        ({"thresholds": {SumKind.PLAIN: 1.0}}, "products sums, got none"),
        ({"thresholds": thresholds | {SumKind.PLAIN: float("nan")}}, "above 0"),
        ({"thresholds": thresholds | {SumKind.PLAIN: -1.0}}, "above 0"),
        ({"tolerances": tolerances | {SumKind.SCATTER: 1}}, "0 or 2 to 64"),
    ]:
        with pytest.raises(ConfigurationError, match=text):
            make(**other)
