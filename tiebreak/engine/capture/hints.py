"""Advice on operators and dtypes that have no exact form here, for the report at capture."""

from typing import Final

import torch

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
"""Advice by the function that asks for values; "rand" if what is asked for is drawn."""

_HALF = "of narrow floats only bfloat16 has a form; train with it, or in float32"
DTYPE_HINTS: Final[dict[torch.dtype, str]] = {
    torch.float16: _HALF,
    torch.float64: "results are rounded to float32 here, from exact sums; leave out .double() and dtype=torch.float64",
    torch.complex64: COMPLEX,
    torch.complex128: _COMPLEX,
}
_ELSE: Final = "write this part with supported operators (docs/OPERATORS.md)"
_ELSE_DTYPE: Final = "use float32, int64 or bool"


def operator_hint(operator: str) -> str:
    """The advice on an operator, given as `topk.default`."""
    if operator.count(".") > 1:
        return (
            f"{operator.partition('.')[0]}'s own operators have no form; choose layers of torch's (dense, not experts)"
        )
    base = operator.partition(".")[0]
    return HINTS.get(base) or HINTS.get(base.removesuffix("_backward").removesuffix("_forward"), _ELSE)


def dtype_hint(dtype: torch.dtype) -> str:
    """The advice on a dtype."""
    return DTYPE_HINTS.get(dtype, _ELSE_DTYPE)
