"""Functions of tensors: see `lowering_bench`. Those of one number are in test_lowering_accuracy."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import Function, check_modules, executed
from tests.parts import slow_except
from tiebreak.engine.lowering import RULES, Context
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, Opcode


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1, 2:4] = 0.5
    y[..., 0] = x[..., 1]
    return y


def _sampled(x: Tensor, **how: Any) -> Tensor:
    return F.grid_sample(x.unsqueeze(1), x[:, :2, :4].reshape(2, 2, 2, 2), **how)


def _sampled_volume(x: Tensor, **how: Any) -> Tensor:
    volume = torch.stack([x, x.flip(1) + 1, x.flip(2)], 1).unsqueeze(1)
    return F.grid_sample(volume, x.flatten()[:24].reshape(2, 1, 2, 2, 3), **how)


def _distances(x: Tensor, p: float) -> Tensor:
    return torch.cdist(x, x.flip(2)[:, :2], p=p)


def _whole(x: Tensor) -> Tensor:
    return (3 * x.detach()).long()


PICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one": lambda w, i: w[:, i],
    "adjacent": lambda w, i: w[:, i, i + 1],
    "apart": lambda w, i: w[i % 2, :, i],
    "broadcast": lambda w, i: w[i[:, None] % 2, i],
    "all": lambda w, i: w[i % 2, i, i + 1],
    "constant ranges": lambda w, i: w[torch.arange(2)[:, None], torch.arange(3)],
    "last": lambda w, i: w[:, -1:, torch.tensor([-1, -3])],
    "constant places": lambda w, i: w[torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2])],
}


def _picked(pick: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Rows and elements chosen by index tensors, which are no constants."""
    return pick(x, torch.tensor([1, -2, 0]) + (x[0, 0, 0] > 99).long())


BAGS = torch.tensor([0, 2, 1, 1, 0, 2, 2])
OFFSETS = torch.tensor([0, 2, 2, 7])
LABELS = torch.tensor([[3, 0, -1, 1, 2], [-1, 2, 1, 0, 0]])  # of a multi-label loss, for which they end at -1

FUNCTIONS: dict[str, Function] = {
    "floor of a quotient": lambda x: torch.div(x, 0.3 * x[:, :1] - 1, rounding_mode="floor") * x,
    "whole part of a quotient": lambda x: torch.div(x, 0.3, rounding_mode="trunc") * x,
    "remainder": lambda x: x % 0.7 + x.remainder(-x[:, :1] - 3), "fmod": lambda x: x.fmod(0.7) + x.fmod(-x[:, :1] - 3),
    "fmax": lambda x: torch.fmax(x, x.flip(2)), "fmin": lambda x: torch.fmin(x, (x - 0.5).sqrt()[:, :1].detach()),
    "decimals": lambda x: (x.round(decimals=2), x.round(decimals=-1)), "signs": lambda x: x.signbit() * x,
    "addmv": lambda x: torch.addmv(x[0, :, 0], x[1], x[0, 0], beta=0.5, alpha=2),
    "addbmm": lambda x: torch.addbmm(x[0, :, :1], x, x.transpose(1, 2), alpha=0.5),
    "bilinear": lambda x: F.bilinear(x[:, 0], x[:, 1], torch.einsum("abc,dbe->dce", x, x) * 0.1),
    "copies": lambda x: (torch.view_copy(x, (-1,)), torch.permute_copy(x, (2, 0, 1)), torch.narrow_copy(x, 2, -3, 2)),
    "masked scatter": lambda x: x.masked_scatter(x.flip(2) > 0, x.square()),
    "masked scatter of few": lambda x: x.masked_scatter(torch.tensor([[True], [False], [True]]), 0.5 * x.flip(1)),
    "many integers": lambda x: (torch.arange(1100) % 7 + (x[0, 0, :1] > 0)).cumsum(0).sin(),
    "cumsum": lambda x: x.cumsum(2), "cumprod": lambda x: x.cumprod(2), "prod": lambda x: x.prod(2),
    "flip": lambda x: x.flip(1, 2), "roll": lambda x: x.roll((1, -2), (1, 2)), "roll all": lambda x: x.roll(4),
    "stack": lambda x: torch.stack([x, 2 * x], 1), "split": lambda x: torch.cat(x.split(2, 2)[::-1], 2),
    "chunk": lambda x: x.chunk(2, 2), "unbind": lambda x: x.unbind(1), "repeat": lambda x: x.repeat(1, 2, 1),
    "einsum": lambda x: torch.einsum("bcw,bdw->bcd", x, x) * 0.1, "unfold": lambda x: x.unfold(2, 3, 2),
    "as strided": lambda x: (x * 1).as_strided((4, 4), (1, 3), 1),
    "scattered": lambda x: torch.as_strided_scatter(x * 1, torch.ones(2, 3) * x.sum(), (2, 3), (3, 1), 4),
    "norm": lambda x: x.norm(dim=1), "norm of all": lambda x: x.norm(), "norm 1": lambda x: x.norm(p=1, dim=1),
    "norm inf": lambda x: x.norm(p=math.inf, dim=2), "normalize": lambda x: F.normalize(x, dim=1),
    "cosine": lambda x: F.cosine_similarity(x[:, 0], x[:, 1], dim=1), "logsumexp": lambda x: x.logsumexp(1),
    "sign": lambda x: x.sign() * x, "floor": lambda x: x.floor() * x, "ceil": lambda x: x.ceil() * x,
    "round": lambda x: x.round() * x, "trunc": lambda x: x.trunc() * x, "frac": torch.frac,
    "finite": torch.nan_to_num, "pad": lambda x: F.pad(x, (1, 2), value=0.5), "assigned": _assigned,
    "multi-label margin": lambda x: F.multilabel_margin_loss(x[:, 0], LABELS),
    "multi-label margins": lambda x: F.multilabel_margin_loss(x[:, 0], LABELS, reduction="none"),
    "one multi-label margin": lambda x: F.multilabel_margin_loss(x[0, 0], LABELS[0], reduction="sum"),
    "x^x": lambda x: (x.abs() + 0.1) ** (0.3 * x),
    "atan2": lambda x: torch.atan2(x, x.flip(2)),
    "norm 3": lambda x: x.norm(p=3, dim=1), "norm -inf": lambda x: x.norm(p=-math.inf, dim=2),
    "dist": lambda x: x[0].dist(x[1]),
    **{f"cdist {p}": partial(_distances, p=p) for p in (1.0, 1.5, 2.0, math.inf)},
    "hypot": lambda x: torch.hypot(x, x.flip(1)), "copysign": lambda x: torch.copysign(x, x.flip(2)),
    "arange": lambda x: x * torch.arange(-1, 1.5, 0.5),
    "amin": lambda x: x.amin(1), "min": lambda x: x.min(1).values + x.min(1).indices,
    "extremes": lambda x: x.max() + x.min(),
    "diagonals": lambda x: x.diagonal(1, 1, 2) * x.diagonal(-1, 1, 2)[:, :1], "argmin": lambda x: x[:, 0] * x.argmin(1),
    "var": lambda x: x.var(1, correction=0), "moduli": lambda x: x * (_whole(x) % -3) + x * _whole(x).fmod(-2),
    "quotients": lambda x: x * (_whole(x) // 2) + x * _whole(x).div(-2, rounding_mode="trunc"),
    "bits": lambda x: (x * ((x > 1) & True), x * ((x < 1) ^ (x > 2)), x * ((x < 1) | False)),
    "triangle": lambda x: x.tril() + x.triu(1), "outer": lambda x: torch.outer(x[0, 0], x[0, 1]),
    **{f"picked, {name}": partial(_picked, pick) for name, pick in PICKS.items()},
}  # fmt: skip
IMAGES_AND_BAGS: dict[str, Function] = {
    "bags": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="sum"),
    "mean bags": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="mean", padding_idx=1),
    "weighted bags": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="sum", per_sample_weights=x[1].flatten()[:7]),
    "greatest of bags": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="max"),
    "greatest of padded bags": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="max", padding_idx=2),
    "bags of a size": lambda x: F.embedding_bag(BAGS[:6].view(2, 3), x[0]),
    "last offset": lambda x: F.embedding_bag(BAGS, x[0], OFFSETS, mode="sum", include_last_offset=True),
    **{
        f"{sampled.__name__}, {mode} {padding} {align}": partial(
            sampled, mode=mode, padding_mode=padding, align_corners=align
        )
        for sampled, modes in (
            (_sampled, ("bilinear", "nearest", "bicubic")), (_sampled_volume, ("bilinear", "nearest"))
        )
        for mode in modes for padding in ("zeros", "border", "reflection") for align in (False, True)
    },
    **{
        f"antialiased, {mode} {size} {align}": partial(
            lambda x, **how: F.interpolate(x.reshape(1, 2, 3, 5), antialias=True, **how),
            mode=mode, size=size, align_corners=align,
        )
        for mode in ("bilinear", "bicubic") for size in ((2, 2), (5, 3), (1, 7)) for align in (False, True)
    },
    "antialiased by scales": lambda x: F.interpolate(
        x.reshape(1, 2, 3, 5), antialias=True, mode="bilinear", scale_factor=(0.7, 0.5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", slow_except(range(4)))
def test_tensor_functions_match_eager_pytorch(part: int, cases: CaseCounter) -> None:
    functions = dict(list(FUNCTIONS.items())[part::4])
    check_modules(functions, (3, 5))
    cases(len(functions))


def test_indexing_by_constant_ranges_needs_no_gather() -> None:
    program = check_modules({"picked": partial(_picked, PICKS["constant ranges"])}, (3, 5))
    assert not [i for i in program.body if i.opcode == Opcode.GATHER and i.origin.startswith("parts.0")]


@pytest.mark.slow
def test_image_and_embedding_bag_functions_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules(IMAGES_AND_BAGS, (3, 5))
    cases(len(IMAGES_AND_BAGS))


def apply(operator: str, x: Tensor, *arguments: object) -> Tensor:
    b = Builder()
    dtypes = {torch.float32: DType.F32, torch.int64: DType.I64, torch.bool: DType.BOOL}
    ref = b.data("x", dtypes[x.dtype], tuple(x.shape))
    found: Ref = b.copy(RULES[operator](Context(b, x), ref, *arguments))
    return executed(b, x)[found.value]


EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388607.5, -8388607.5, 8388609.0, 4194303.5, 3e38, -3e38]


def test_rounding_to_integers_is_exact(cases: CaseCounter) -> None:
    x = torch.tensor([*EDGES, *torch.randn(200, generator=torch.Generator().manual_seed(1)).mul(1e3).tolist()])
    for name in ("floor", "ceil", "round", "trunc"):
        rounded = [float(round(v)) if name == "round" else float(getattr(math, name)(v)) for v in x.tolist()]
        assert apply(f"{name}.default", x).tolist() == rounded, name
        odd = apply(f"{name}.default", torch.tensor([math.inf, -math.inf, math.nan]))
        assert odd[:2].tolist() == [math.inf, -math.inf]
        assert bool(odd[2].isnan())
        cases(len(x) + 3)


def test_integer_cumulative_sums_are_exact(cases: CaseCounter) -> None:
    x = torch.tensor([[1 << 62, 3, -5], [7, 1 << 60, 2]])
    assert apply("cumsum.default", x, 1).tolist() == x.cumsum(1).tolist()
    assert apply("cumsum.default", x, 0).tolist() == x.cumsum(0).tolist()
    cases(2)


def test_nearest_upsampling_picks_exact_integer_positions(cases: CaseCounter) -> None:
    for size in range(1, 9):
        x = torch.arange(float(size)).view(1, 1, size)
        for out in range(1, 20):
            b = Builder()
            ref = b.data("x", DType.F32, (1, 1, size))
            context = Context(b, torch.empty(1, 1, out))
            found = b.copy(RULES["upsample_nearest1d.default"](context, ref, [out], None))
            assert executed(b, x)[found.value].flatten().tolist() == [float(o * size // out) for o in range(out)]
            cases()


def test_operations_on_empty_tensors_match_eager_pytorch(cases: CaseCounter) -> None:
    def nothing(x: Tensor) -> Tensor:
        none = x[:, 3:]  # (2, 0, 5)
        product = torch.einsum("bkw,bkv->bwv", none, none)  # a sum of no terms
        parts = [none.sum(1), none.prod(1), torch.cat([none, x, none], 1).sum(1), F.pad(none, (0, 0, 1, 1)).sum(1)]
        return torch.stack([*parts, product[:, 0], none.ne(0).any(1).to(x.dtype)]) + none.flatten(1).roll(1).numel()

    check_modules({"nothing": nothing}, (3, 5))
    cases()


def test_matrix_inverses_in_a_step_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"linalg_inv_ex.default .*write it with products"):
        check_modules({"inverse": torch.linalg.inv}, (3, 3))


def test_the_maximum_of_an_empty_tensor_is_refused() -> None:
    b = Builder()
    with pytest.raises(NotImplementedError, match="an extreme of no elements"):
        b.max(b.full((0,), 0.0))


def test_empty_state_tensors_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected elements in model.w, got shape \(0, 3\)"):
        Builder().state("model.w", DType.F32, (0, 3))


def test_building_an_unsupported_instruction_is_refused() -> None:
    b = Builder()
    with pytest.raises(NotImplementedError, match=r"this function of .*BOOL"):
        b.add(b.const(True, DType.BOOL), b.const(True, DType.BOOL))
    with pytest.raises(NotImplementedError, match="more than 8 dims at once"):
        b.copy(b.iota((2,) * 4, (8, 4, 2, 1)).expand((2,) * 9))


def test_extremes_of_integers_and_bools_match_torch(cases: CaseCounter) -> None:
    least = -(1 << 63)
    for values in ([[3, least, 5], [least, 1, (1 << 63) - 1]], [[True, False, True], [False, False, False]]):
        x = torch.tensor(values)
        for name, dims in (("amax", [0]), ("amin", [1]), ("amin", [0, 1])):
            assert apply(f"{name}.default", x, dims).tolist() == getattr(x, name)(dims).tolist()
        assert apply("argmin.default", x, 1).tolist() == x.long().argmin(1).tolist()
        cases(4)
    assert apply("isinf.default", torch.tensor([3])).tolist() == [False]


def test_a_failing_lowering_rule_is_reported_with_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_c: Context, x: Ref) -> Ref:
        return x.select(x.rank - 1, 99)

    monkeypatch.setitem(RULES, "exp.default", broken)
    with pytest.raises(ConfigurationError, match=r"exp.default \(at parts.0: .*\): no form for these arg"):
        check_modules({"exp": torch.exp}, (2,))
