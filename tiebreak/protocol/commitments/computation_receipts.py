"""Computation Receipts (CR) of versions 0.1, 0.1.1 and 0.1.2: written for runs, and judged.

https://github.com/anomly-labs/computation-receipts. A receipt is JSON: a `manifest`, its `certificate`, and `meta`,
which counts for nothing. The manifest names model, input, computation, arithmetic and output by digests; the
certificate is the SHA-256 of its canonical JSON. A verifier computes again, makes its own receipt, and compares.
Sections below are of the specification.

A single receipt of versions 0.1.1 (sampled) and 0.1.2 (a chunk of a chain) is judged too; samples are not drawn here,
and chains not followed. Tiebreak adds arithmetics (docs/SPEC.md, section 5): `ieee754-f32-rn` is that of a job of
policy `exact` with 32 bits, where every sum is exact and is rounded once, so that no order of its terms changes a bit.
With b bits instead, its name ends in `-b`. Under policy `logged` the trainer's log decides how some sums are rounded:
that is `ieee754-f32-logged`, which the arithmetic alone does not fix, and no receipt of it is ever accepted.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from re import fullmatch
from typing import Any, Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest


def _profile(*, exact: bool, **params: Any) -> dict[str, Any]:
    return {"accumulation": "exact" if exact else "rounded", "order_independent": exact, "params": params}


def profile_of(precision: int, *, logged: bool) -> str:
    """The name of the arithmetic of a job."""
    name = "ieee754-f32-logged" if logged else "ieee754-f32-rn"
    return name if precision == MAX_PRECISION else f"{name}-{precision}"


_BPOSIT16: Final = {"n": 16, "es": 3, "quire_bits": 256, "frac_bits": 96}
PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "bposit16-quire256": _profile(exact=True, **_BPOSIT16),
    "bposit16-quire256-b48": _profile(exact=True, regime_bound=48, **_BPOSIT16),
    "bposit16-quire256-b112": _profile(exact=True, regime_bound=112, **_BPOSIT16),
    "bposit8-imma-int32": _profile(exact=True, n=8, es=2, operand_scale_bits=6, accumulator="int32"),
    "float64": _profile(exact=False, bits=64), "float32": _profile(exact=False, bits=32),
} | {
    profile_of(bits, logged=logged): _profile(exact=not logged, bits=32, sum_bits=bits)
    for bits in range(MIN_PRECISION, MAX_PRECISION + 1) for logged in (False, True)
}  # fmt: skip
"""Section 7, and those of Tiebreak."""


def canonical(value: Any) -> bytes:
    """Section 2, of a value without floats. Raises `UnicodeEncodeError` for text that is not Unicode."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def tensor_digest(dtype: str, shape: list[int], data: bytes) -> str:
    """Section 3.1. dtype: NumPy's code without byte order, such as f4. data: row-major, little-endian."""
    return digest(canonical({"dtype": dtype, "shape": shape}) + data)


def collection_digest(tensors: Mapping[str, str]) -> str:
    """Section 3.2. tensors: the digest of each, by name."""
    return digest(b"".join(canonical({"name": name, "digest": tensors[name]}) for name in sorted(tensors)))


def receipt_of_run(job: Job, final_state: Digest, meta: Mapping[str, str]) -> bytes:
    """The receipt of a run. meta: what else it says, unsigned.

    States and data are trees of many tensors, each of which a manifest names by its root, as a tensor of 32 bytes.
    """
    first, data, final = (tensor_digest("u1", [32], r) for r in (job.initial_state_root, job.data_root, final_state))
    profile = profile_of(job.precision, logged=job.is_logged)
    manifest = {
        "cr": "0.1", "digest_alg": "sha256", "arithmetic": {"profile": profile, **PROFILES[profile]},
        "computation": {"id": f"urn:tiebreak:program:{job.program_root.hex()}:{job.steps}", "version": "1"},
        "model": {"digest": collection_digest({"firstState": first}), "n_tensors": 1},
        "input": {"digest": collection_digest({"data": data}), "n_tensors": 1},
        "output": {"digest": final, "shape": [32]},
    }  # fmt: skip
    return canonical({"manifest": manifest, "certificate": digest(canonical(manifest)), "meta": meta}) + b"\n"


def verdict(claimed: bytes, own: bytes) -> str:
    """MALFORMED, REJECT, UNVERIFIABLE or ACCEPT (section 6). own: the receipt of the verifier's own computation."""
    try:
        found = manifest_of(claimed)
    except EncodingError:
        return "MALFORMED"
    arithmetic = found["arithmetic"]
    if arithmetic["profile"] not in PROFILES or not arithmetic["order_independent"]:
        return "UNVERIFIABLE"  # even if both are equal
    return "ACCEPT" if canonical(found) == canonical(manifest_of(own)) else "REJECT"


def manifest_of(data: bytes) -> dict[str, Any]:
    """The manifest of a well-formed receipt. Raises `EncodingError`."""
    try:
        receipt = parse_json(data, 6)
        if not any(_fits(shape, receipt) for shape in _RECEIPTS) or not _agrees(receipt["manifest"]):
            raise ValueError("missing or other fields, or ones that contradict each other")
        if receipt["certificate"] != digest(canonical(receipt["manifest"])):
            raise ValueError("the digest of another manifest")
    except ValueError as error:
        raise EncodingError(f"receipt: expected a well-formed one, got {error}") from error
    return dict(receipt["manifest"])


def _fits(shape: Any, value: Any) -> bool:
    """Whether a value has a shape: a rule, or those of all fields of an object, where a name with `?` may be absent."""
    if callable(shape):
        return bool(shape(value))
    rules = {name.rstrip("?"): rule for name, rule in shape.items()}
    if not isinstance(value, dict) or not {n for n in shape if n in rules} <= value.keys() <= rules.keys():
        return False
    return all(_fits(rules[name], inner) for name, inner in value.items())


def _agrees(manifest: Mapping[str, Any]) -> bool:
    arithmetic, sample, chunk = manifest["arithmetic"], manifest.get("sample"), manifest.get("chunk")
    if sample and not 1 <= sample["size"] <= sample["n_units"] in manifest["output"]["shape"][:1]:  # section 10
        return False
    if chunk:  # section 12
        index, closing, ends = chunk["index"], chunk["closing"], ("n_chunks" in chunk, "chain_digest" in chunk)
        if (chunk["prev_certificate"] == "") != (index == 0) or closing > index or ends != (closing, closing):
            return False
        if chunk.get("n_chunks", index) != index:
            return False
    return canonical(arithmetic | PROFILES.get(arithmetic["profile"], {})) == canonical(arithmetic)  # section 6.1


def _text(pattern: str = "(?s:.*)") -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and fullmatch(pattern, value) is not None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


_DIGEST: Final = _text("sha256:[0-9a-f]{64}")
_TENSORS: Final = {"digest": _DIGEST, "n_tensors": _is_count}
_MANIFEST: Final[dict[str, Any]] = {
    "digest_alg": _text("sha256"), "model": _TENSORS, "input": _TENSORS,
    "arithmetic": {
        "profile": _text(), "accumulation": _text(), "order_independent": lambda x: type(x) is bool,
        "params": lambda x: isinstance(x, dict) and all(type(y) in (int, str, bool) for y in x.values()),
    },
    "computation": {"id": _text(), "version": _text(), "graph_digest?": _DIGEST},
    "output": {"digest": _DIGEST, "shape": lambda x: isinstance(x, list) and all(map(_is_count, x))},
}  # fmt: skip
_SAMPLE: Final = {
    "rule": _text("sha256-ctr-reject-v1"), "n_units": _is_count, "size": _is_count,
    "challenge": _text("([0-9a-f]{2})*"), "digest": _DIGEST,
}  # fmt: skip
_CHUNK: Final = {
    "index": _is_count, "prev_certificate": _text("(sha256:[0-9a-f]{64})?"), "closing": lambda x: type(x) is bool,
    "n_chunks?": _is_count, "chain_digest?": _DIGEST,
}  # fmt: skip
_RECEIPTS: Final = [
    {"manifest": {"cr": _text(v), **_MANIFEST, **more}, "certificate": _DIGEST, "meta?": lambda x: type(x) is dict}
    for v, more in ((r"0\.1", {}), (r"0\.1\.1", {"sample": _SAMPLE}), (r"0\.1\.2", {"chunk": _CHUNK}))
]
"""Each version has its own section and no other one."""
