"""The place in the user's code where something happens (file, line, module of the model), and advice for refusals."""

import linecache
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from tiebreak.protocol.errors import ConfigurationError

_ORDER = "of orders `sort`, `topk`, `kthvalue` and `median` have a form; use one of them, or comparisons and sums"
_SHAPE = "the shape of its result depends on data; keep the shape and use masks and `where`"
_RANDOM = (
    "of draws only uniform, normal, exponential, gamma, beta and Dirichlet numbers, `bernoulli`, `multinomial`, "
    "integers within bounds and permutations have a form"
)
_DRAWN = (
    "a draw of Gamma, Chi2, StudentT or InverseGamma has no gradient in its concentration or degrees of freedom here; "
    "detach those (location and scale may be trained), or draw from Weibull or LogNormal"
)
_SHARES = (
    "a draw of Beta or Dirichlet has no gradient in its concentrations here; detach those, or draw from Kumaraswamy "
    "for Beta, and by softmax of normal numbers for Dirichlet"
)
_MATRIX = "decompositions of matrices have no form; move it out of the step or write it with products"
COMPLEX: Final = (
    "of complex numbers it has no form; use sums, products, quotients, real powers, abs, exp, log and Fourier "
    "transforms, or write real and imaginary parts apart"
)
_FUNCTION = "it has no form of stated accuracy (docs/OPERATORS.md); move it out of the step or approximate it"
_COMPLEX = "of complex numbers only complex64 has a form, within a step; write real and imaginary parts apart"

HINTS: Final[dict[str, str]] = {
    **dict.fromkeys(("nanmedian", "mode"), _ORDER),
    **dict.fromkeys(("nonzero", "masked_select", "_unique2", "unique_dim", "bincount"), _SHAPE),
    **dict.fromkeys(("poisson", "geometric", "cauchy", "log_normal", "random", "randint_like",
                     "binomial"), _RANDOM),
    "_standard_gamma_grad": _DRAWN,
    "_dirichlet_grad": _SHARES,
    **dict.fromkeys(("linalg_inv_ex", "linalg_cholesky_ex", "linalg_qr", "_linalg_svd", "_linalg_eigh", "linalg_lu",
                     "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "triangular_solve",
                     "linalg_solve_triangular", "linalg_matrix_exp", "linalg_eig"), _MATRIX),
    "_local_scalar_dense": "a number read from a tensor cannot decide what is computed; keep it a tensor",
    "_ctc_loss": "call it as torch.nn.functional.ctc_loss, or by torch.nn.CTCLoss",
    **dict.fromkeys(("erfinv", "i0", "special_i0e", "special_i1", "special_i1e", "special_bessel_j0", "igamma",
                     "special_erfcx"), _FUNCTION),
    **dict.fromkeys(("cummax", "cummin", "logcumsumexp"), "of scans only `cumsum` and `cumprod` have a form"),
    **dict.fromkeys(("rrelu_with_noise", "rrelu_with_noise_functional"), "its slopes are drawn; use a fixed slope"),
    "_sparse_coo_tensor_with_dims_and_tensors": "gradients are dense here; use Embedding(sparse=False)",
    "_pdist": "use `torch.cdist`",
    "_native_multi_head_attention": "the fused kernel is for inference; put the model in train mode",
    "_flash_attention": "use attention that torch decomposes: `attn_implementation=\"eager\"` or `\"sdpa\"`",
}  # fmt: skip
"""Advice by operator name, without the overload."""

_MASKED = (
    "keep all elements and weight them by the mask, `(values * mask).sum() / mask.sum()`, or choose by "
    "`torch.where(mask, a, b)`"
)
VALUES: Final[dict[str, str]] = {
    **dict.fromkeys(("__getitem__", "nonzero", "argwhere", "where", "masked_select"), _MASKED),
    **dict.fromkeys(("_unique2", "unique", "unique_consecutive"), "go through all values that there may be "
                    "(`range(10)`), with a mask for each, instead of those in the batch"),
    "one_hot": "give `F.one_hot` its `num_classes`",
    "bincount": "count by `F.one_hot(y, num_classes=10).sum(0)`, whose shape is known",
    "repeat_interleave": "repeat each equally often, by an integer, or index by a tensor of fixed length",
    "rand": "draw a factor instead: `keep = torch.rand(()) > p`, then `x + keep * branch(x)`",
    "__bool__": "compute both ways and choose, `torch.where(condition, a, b)`",
    "__index__": "index by tensors: `queue[(ptr + torch.arange(n)) % len(queue)] = keys` for `queue[ptr:ptr + n]`, "
                 "`torch.stack(outputs)[i]` for one of several layers; write sizes as numbers",
    "item": "keep the tensor, by `.detach()` without its gradient, and log by `callbacks`",
}  # fmt: skip
"""Advice by the function that reads values of a tensor; "rand" if these are random numbers."""

_HALF = "of narrow floats only bfloat16 has a form; train with it, or in float32"
DTYPE_HINTS: Final[dict[torch.dtype, str]] = {
    torch.float16: _HALF,
    torch.float64: "results are rounded to float32 here, from exact sums; leave out .double() and dtype=torch.float64",
    torch.complex64: COMPLEX,
    torch.complex128: _COMPLEX,
}
_ELSE_OPERATOR: Final = "write this part with supported operators (docs/OPERATORS.md)"
_ELSE_DTYPE: Final = "use float32, int64 or bool"


def operator_hint(operator: str) -> str:
    """The advice on an operator, given as `topk.default`."""
    if operator.count(".") > 1:
        return (
            f"{operator.partition('.')[0]}'s own operators have no form; choose layers of torch's (dense, not experts)"
        )
    base = operator.partition(".")[0]
    return HINTS.get(base) or HINTS.get(base.removesuffix("_backward").removesuffix("_forward"), _ELSE_OPERATOR)


def dtype_hint(dtype: torch.dtype) -> str:
    return DTYPE_HINTS.get(dtype, _ELSE_DTYPE)


_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = tuple(
    f"{folder}/" for folder in (Path(torch.__file__).parent, *(_ROOT / n for n in ("engine", "api", "protocol")))
)
_LIBRARY: Final = f"{Path(traceback.__file__).parent}/"


def is_users(filename: str, *, libraries: bool = True) -> bool:
    """Whether code is neither torch's, nor ours, nor Python's. libraries: whether other installed code counts."""
    installed = "site-packages" in filename
    pythons = filename.startswith(_LIBRARY) and not installed
    return not (pythons or filename.startswith((*_OURS, "<frozen")) or (installed and not libraries))


def _shown(filename: str, line: int | None) -> str:
    """The path from the working directory or the library's own folder on, and the line."""
    path = filename.rpartition("site-packages/")[2].removeprefix(f"{Path.cwd()}/")
    return f"{path}:{line}"


def user_line(frame: FrameType | None, within: str = "") -> str:
    """The innermost line of the stack that is neither torch's nor ours; empty if there is none.

    within: the file of a caller, at which the search ends.
    """
    while frame is not None and frame.f_code.co_filename != within:
        if is_users(frame.f_code.co_filename):
            return _shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def module_of(frame: FrameType | None, paths: dict[int, str]) -> str | None:
    """The path of the innermost module that a stack is in (`paths`: by id); None if it is in none."""
    while frame is not None:
        for first in frame.f_code.co_varnames[:1]:
            owner = frame.f_locals.get(first)
            found = paths.get(id(owner))
            if found is not None and hasattr(type(owner), frame.f_code.co_name):  # a method, and not the loss
                return found
        frame = frame.f_back
    return None


def place_of(error: BaseException, model: nn.Module) -> tuple[str, list[str]]:
    """The origin of an error (the innermost module that it passed through, and the user's line), and the code there.

    The code is that of the user's line and of what it calls, then that of the lines just before, and whether the
    function computes a CTC loss.
    """
    paths, path = {id(module): name for name, module in model.named_modules()}, None
    line, code, at = "", ["", "", ""], error.__traceback__
    while at is not None:
        name, number = at.tb_frame.f_code.co_filename, at.tb_lineno
        path = module_of(at.tb_frame, paths)
        if is_users(name):
            line, code[:2] = _shown(name, number), ["", "".join(linecache.getlines(name)[max(0, number - 4) : number])]
            if not at.tb_frame.f_code.co_name.endswith(("comp>", "expr>")):
                code[2] = "joined targets" * any("ctc" in called.lower() for called in at.tb_frame.f_code.co_names)
        code[0] += linecache.getline(name, number)
        at = at.tb_next
    return described(path, line), code


def described(path: str | None, line: str) -> str:
    """A place in words. path: None for the loss, empty for the model itself."""
    module = "the loss" if path is None else f"module {path}" if path else "the model"
    return f"{module} ({line})" if line else module


def first_line(run: Callable[[], Any], happened: Callable[[], bool], model: nn.Module) -> str:
    """Runs something and says at which of the user's lines, and in which module, something happened."""
    paths = {id(module): name for name, module in model.named_modules()}
    last, found = list[str](), list[str]()

    def watch(frame: FrameType, _event: str, _: Any) -> Any:
        if found:
            return None
        if last and happened():
            found.append(last[-1])
        elif is_users(frame.f_code.co_filename):
            last[:] = [described(module_of(frame, paths), _shown(frame.f_code.co_filename, frame.f_lineno))]
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        run()
    finally:
        sys.settrace(before)
    return next(iter(found or last), "an unknown place")


_VALUES: Final = "it needs the values of tensors, but one program must be right for every step"
_KEPT: Final = "use `where` and masks instead, and log by `callbacks`"
_IN_CODE: Final = (
    ("_ctc_loss", HINTS["_ctc_loss"]),
    ("joined targets", "give ctc_loss its targets padded, (N, S), of which it reads as many as target_lengths says"),
    (
        "layerdrop",
        "it skips layers at random: set layerdrop (encoder_layerdrop, decoder_layerdrop) to 0 in its settings, or "
        "let the program draw and compute both ways, `x = torch.where(torch.rand(()) < layerdrop, x, layer(x))`",
    ),
    ("observer_enabled", 'it asks its switches: use fused observers, as get_default_qat_qconfig("x86") does'),
    ("causal_comparison", "say whether the mask is causal, by `is_causal=True` or `is_causal=False`"),
    ("validate_args", "leave validate_args=True out"),
    ("pack_padded_sequence", "give it the lengths as a tensor, without `.tolist()`"),
    ("math.", "take torch's function (`torch.sqrt`) of the tensor instead of the number's (`math.sqrt`)"),
    ("assert", "an assertion asks for them: leave it out, or start Python with -O"),
    ("expert", 'it loops over experts: set experts_implementation="grouped_mm" in its settings, or use dense layers'),
    ("label", "give the model no labels, and compute the loss from its result in the loss function"),
)
"""Texts that an error, or the code near the line that needs values, may hold, and the advice for each."""
_ON_THE_LINE: Final = ("math.", "assert")
"""Texts that count only in the line itself."""
_BACKWARD: Final = (
    "it calls `backward`; return the loss instead, whose gradients are a part of the program, and call "
    "torch.autograd.grad for a gradient that the step reads itself"
)
_ADVICE: Final = (
    (("DataDependent", "DynamicOutputShape", "data-dependent"), _VALUES),
    (("numpy",), "a program holds torch's operators only; compute this with tensors, or give it as data"),
    (("SyntaxError",), "draw integers by `torch.randint(low, high, shape)` instead of `random_(low, high)`"),
    (("deepcopy protocol",), "copy the model before the training, or call it by torch.func.functional_call"),
    (("mirrored meta", "does not require grad"), _BACKWARD),
    (("estedTensor",), "give nn.TransformerEncoder enable_nested_tensor=False, for which PyTorch has another kernel"),
    (("placeholders=",), "torch cannot trace a write to a tensor without elements; leave that tensor out"),
    (
        ("entirely functional",),
        "it writes in place to what was made of a tensor that is not the model's; make that a buffer "
        "(`register_buffer`), or compute a new tensor",
    ),
    (("FunctionalTensor",), "a subclass of Tensor cannot be followed; use plain tensors"),
    (
        ("fake",),
        "capture cannot follow a tensor that is kept aside (in a torch.autograd.Function, a global or a cache); "
        "pass it as argument and result",
    ),
    (("heckpoint",), "use torch.utils.checkpoint with use_reentrant=False, or leave it out"),
)
_ELSE: Final = (
    "it runs in plain PyTorch, so either it takes another path while torch exports (torch.compiler.is_exporting(); "
    "give the arguments that it then wants), or write it with operators that docs/OPERATORS.md lists"
)


def as_tensors(text: str) -> str:
    """A message of torch that says Tensor for the kinds of tensors that capture puts in the place of the user's."""
    return re.sub(r"\b(FunctionalTensor|FakeTensor|_Symbol|_Through)\b", "Tensor", text)


def refusal(error: Exception, model: nn.Module, what: str, otherwise: str = _ELSE) -> ConfigurationError:
    """An error of torch or of the user's code, in one message with its place."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    advice = next((advice for words, advice in _ADVICE if any(w in f"{kind} {text}" for w in words)), otherwise)
    place, code = place_of(error, model)
    is_said = advice not in (_VALUES, _BACKWARD)  # whose errors have names that tell nobody anything
    said = f": {kind}: {as_tensors(text)[:300]}" if is_said else ""
    if advice is _VALUES:
        asked = next(iter(getattr(error, "__notes__", ())), "")
        drawn = asked in ("item", "__bool__") and ("rand(" in code[0] or "rand(" in code[1])
        known = [hint for part in (text, code[0], code[2]) for word, hint in _IN_CODE if word in part]
        known += [hint for word, hint in _IN_CODE if word in code[1] and word not in _ON_THE_LINE]
        advice = "; ".join([advice, *known, VALUES.get("rand" if drawn else asked, _KEPT)][:2])
    return ConfigurationError(f"{what}: {place}{said}; {advice}")
