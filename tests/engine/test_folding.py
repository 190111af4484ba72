"""Constants of a step, integers narrower than i64, indexing by several tensors, module paths, and what is refused."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.fx.traceback
from torch import Tensor, nn

from tests.engine.lowering_bench import loss_of, make_task, run_engine
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.tracing import trace
from tiebreak.engine.capture.user_code import HINTS
from tiebreak.engine.lowering import RULES
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode


class Scaled(nn.Module):
    """`function(x * w)` where function closes over what a test wants; w is ones."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.w)


X = torch.tensor([[0.0, -1.5, 2.25, 3.0], [5.0, 4.0, -7.0, 0.5], [1.0, 1.0, 2.0, -2.0]])


def compiled_model(model: nn.Module, loss: Callable[..., Tensor] = loss_of) -> Captured:
    return capture_task(make_task(model, {"x": X}, batch=3, loss=loss))


def captured(function: Callable[[Tensor], Tensor]) -> Captured:
    return compiled_model(Scaled(function))


def agree(function: Callable[[Tensor], Tensor]) -> Captured:
    """Loss and gradient are exactly eager torch's. The batch is all of the data: the order of rows must not matter."""
    made = captured(function)
    w = torch.ones(4, requires_grad=True)
    loss = function(X * w)
    loss.backward()
    found = run_engine(made)
    assert found["loss"].item() == loss.item()
    assert torch.equal(1 - found["model.w"], w.grad)
    return made


def constants(made: Captured) -> list[str]:
    return [name for name in made.data if name.startswith("constant.")]


MASK = torch.tensor([True, False, False, True])
TABLE = torch.tensor([0.5, 2.0, -4.0, 8.0])


def test_equal_constants_are_stored_once_and_integers_exactly() -> None:
    def function(x: Tensor) -> Tensor:
        places = torch.arange(4, dtype=torch.int32).cumsum(0) % 5  # 0, 1, 3, 1: not a range
        y = x * x
        return (y * places).sum() + (y * (places.long() * 1).float()).sum() + torch.where(MASK, y, 0.0).sum()

    made = agree(function)
    held = [made.data[name] for name in constants(made)]
    assert [t.dtype for t in held if t.tolist() == [0, 1, 3, 1]] == [torch.int64, torch.float32]
    assert [t for t in held if t.dtype == torch.bool and torch.equal(t, MASK)]


def test_ranges_and_uniform_constants_are_not_stored_as_data() -> None:
    def function(x: Tensor) -> Tensor:
        grid = torch.arange(3)[:, None] * 10 + 2 * torch.arange(4)[None]
        half = torch.tensor([0.25, 0.25]).repeat(2) * 2
        return (x * x * grid.amin(0)).sum() + (x * x * half).sum()

    assert constants(agree(function)) == []


def test_a_constant_that_repeats_along_a_dim_is_kept_once() -> None:
    made = agree(lambda x: (x * x * torch.stack([TABLE, TABLE, TABLE])).sum())
    (name,) = constants(made)
    assert torch.equal(made.data[name], TABLE)


def test_constants_of_other_dtypes_must_be_exact_in_float32() -> None:
    agree(lambda x: (x * TABLE.to(torch.bfloat16).float() * torch.tensor(0.5, dtype=torch.float64)).sum())
    third = torch.tensor([1 / 3, 0.5, 0.5, 0.5], dtype=torch.float64)
    with pytest.raises(ConfigurationError, match="float64"):
        captured(lambda x: torch.where(x > third, x, 0.0).sum())


def test_values_that_depend_only_on_shapes_are_folded() -> None:
    made = agree(lambda x: (x * (torch.ones_like(x[0]).cumsum(0) ** 2)).sum())
    assert [made.data[name].tolist() for name in constants(made)] == [[1, 4, 9, 16]]


def test_a_constant_matrix_is_decomposed_at_capture() -> None:
    agree(lambda x: (x @ torch.linalg.cholesky(torch.eye(4) * 4) @ torch.linalg.inv(torch.eye(4) * 2)).sum())


def test_random_draws_are_not_folded_into_constants() -> None:
    made = captured(lambda x: (x * (torch.rand(4) + 0.0)).sum())
    assert [i.opcode for i in made.program.body].count(Opcode.RANDOM) == 1
    assert constants(made) == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8], ids=str)
def test_narrow_integers_wrap_around_as_in_torch(dtype: torch.dtype) -> None:
    def wrapping(x: Tensor) -> Tensor:
        return (x.detach().round().abs().long() * 1_234_567_891).to(dtype) * 3 + 100 - 7

    known = wrapping(X).flatten()
    agree(lambda x: x.sum() + (wrapping(x).flatten()[:, None] == known).any(1).sum())


def test_assigning_a_scalar_under_a_boolean_mask_matches_torch() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[y > 2] = 0.5
        return y.sum()

    agree(function)


class NodePool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), Scaled(torch.special.i0e))
        self.second = Scaled(lambda x: x.mode().values)
        self.third = Scaled(lambda x: x.to(torch.float16).float())
        self.fourth = Scaled(lambda x: torch.polar(x, x).tan().abs())

    def forward(self, x: Tensor) -> Tensor:
        return sum(part(x).mean() for part in (self.first, self.second, self.third, self.fourth)).exp()


def test_all_unsupported_operators_are_listed_with_paths_and_hints() -> None:
    with pytest.raises(ConfigurationError) as caught:
        compiled_model(NodePool())
    lines = str(caught.value).splitlines()[1:]
    for operator, path, hint in (
        ("special_i0e.default", "first.1", "no form of stated accuracy"),
        ("special_i1e.default", "first.1", "no form of stated accuracy"),  # in the gradient
        ("mode.default", "second", "`sort`, `topk`"),
        ("_to_copy.default", "third", "dtype torch.float16; of narrow floats only bfloat16"),
        (
            "tan.default",
            "fourth",
            "of complex numbers it has no form; use sums, products, quotients, real powers, abs, exp, log",
        ),
    ):
        found = [line for line in lines if line.strip().startswith(f"{operator} (at {path}:") and hint in line]
        assert found, f"{operator} at {path}: not in {lines}"


def test_shapes_that_depend_on_data_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one program must be right for every step"):
        captured(lambda x: x.sum() * x.nonzero().shape[0])


REFUSED = pytest.raises(ConfigurationError, match="needs the values of tensors")


def test_tracing_leaves_no_hooks_or_flags_behind() -> None:
    model = NodePool()
    before = dict(torch.fx.traceback.current_meta)
    for loss, expected in ((lambda m, x: m(x), nullcontext()), (lambda m, x: m.first(x).sum().item(), REFUSED)):
        with expected:
            trace(model, loss, (X,))
        assert not torch.compiler.is_compiling()
        assert not torch.compiler.is_exporting()
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
        assert torch.fx.traceback.current_meta == before


def test_hints_exist_only_for_torch_operators_without_a_rule(cases: Callable[..., None]) -> None:
    ruled = {name.partition(".")[0] for name in RULES}
    partial_rules = {"index_put", "pow", "random", "randint_like"}  # some overloads or arguments have a form
    for name in HINTS:
        spelled = [name + suffix for suffix in ("", "_forward", "_backward") if hasattr(torch.ops.aten, name + suffix)]
        assert spelled, f"torch has no operator {name}"
        assert not ruled.intersection(spelled) - partial_rules, f"{name} has a rule"
        cases()


def test_a_step_that_trains_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="depends on a trainable parameter"):
        captured(lambda x: x.detach().sum())


def test_forward_and_backward_instructions_name_their_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 1)))
    body = compiled_model(model, lambda m, x: m(x).square().mean()).program.body
    places = [i.origin.partition(":")[0] for i in body if i.opcode == Opcode.REDUCE]
    assert places.count("0") == 3  # the product, and the gradients of weight and bias
    assert places.count("1.1") == 4  # and the gradient of what goes in
