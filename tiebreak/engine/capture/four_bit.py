"""Layers of bitsandbytes with 4-bit weights (QLoRA: Dettmers et al., 2023), whose codes stay codes in the state.

1. `as_state` makes buffers of all that bitsandbytes saves of a layer's weight, under the names that it has in a file:
   `weight` (two codes a byte), `weight.absmax` (the scale of each block), `weight.quant_map` (the numbers that the 16
   codes stand for), with double quantization the same of the scales, and the description `weight.quant_state...`.
   Bytes become i64 words, flat and little-endian, with zeros up to 256 bytes: a state has no narrower integers, and
   descriptions of layers alike have one size then. The offset of nested scales, which only the description has in a
   file, is one buffer more (`weight.offset`).
2. Eager PyTorch, in rehearsal and check, calls bitsandbytes' own `forward` on what the buffers hold.
3. A trace has, in its place, what that computes on a CPU: number = map[code] * scale in FP32, rounded to the dtype of
   the input in the forward pass and to that of the quantized weight in the backward pass. Both passes unpack the codes
   anew (`tiebreak::again`), or each layer's numbers would be kept from one to the other. Numbers of float16, of which
   a program has no dtype, are those of FP32 that `to_f16` rounds to them.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.step_run import replaced
from tiebreak.protocol.errors import ConfigurationError

CODES: Final = "weight"
SCALES, MAP = "weight.absmax", "weight.quant_map"
NESTED_SCALES, NESTED_MAP, OFFSET = "weight.nested_absmax", "weight.nested_quant_map", "weight.offset"
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_UNIT: Final = 256
"""Bytes are held in multiples of this many."""
_PLACES: Final = torch.tensor([256**place for place in range(8)])
_NIBBLES: Final = torch.tensor([divmod(byte, 16) for byte in range(256)])
"""The two codes of each byte: bitsandbytes packs the first of a pair into the high half."""

torch.library.define("tiebreak::again", "(Tensor x) -> Tensor")
torch.library.impl("tiebreak::again", "CompositeExplicitAutograd")(Tensor.clone)
torch.library.register_fake("tiebreak::again")(torch.empty_like)


def layers(model: nn.Module) -> dict[str, Any]:
    """The layers with 4-bit weights, by path."""
    return {path: module for path, module in model.named_modules() if "Linear4bit" in _own_kinds(module)}


def loadable(names: Mapping[str, str]) -> dict[str, str]:
    """Leaves out, of names by key, what `load_state_dict` refuses: all that bitsandbytes saves of 4-bit weights."""
    codes = tuple(key.removesuffix(".quant_map") for key in names if key.endswith(MAP))
    return {key: name for key, name in names.items() if not key.startswith(codes)}


def _own_kinds(module: nn.Module) -> set[str]:
    """The names of bitsandbytes' classes that a module is of."""
    return {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("bitsandbytes.")}


def unsupported(model: nn.Module) -> Iterator[str]:
    """Names what of bitsandbytes in a model has no form here, by the first layer of each kind, with advice."""
    found = dict[str, str]()
    for path, module in model.named_modules():
        if SCALES not in module._buffers and (kinds := _own_kinds(module)):
            reason = _reason(module) if "Linear4bit" in kinds else f"a {type(module).__name__}; only Linear4bit is held"
            found.setdefault(reason, path)
    for reason, path in found.items():
        if reason:
            yield f"{path}: {reason}"


def check(model: nn.Module) -> None:
    """Raises `ConfigurationError` for what `unsupported` names."""
    if reasons := [*unsupported(model)]:
        raise ConfigurationError(f"expected 4-bit weights that a program can unpack, got {'; '.join(reasons)}")


def _reason(layer: Any) -> str:
    """The reason for which a layer with 4-bit weights has no form here; empty if it has one."""
    weight, held = layer.weight, layer.quant_state
    if held is None:
        return "a Linear4bit that is not quantized yet; move the model to its device, or load it with from_pretrained"
    if getattr(held, "packing_format_for_cpu", False):
        return "weights that an evaluation on this CPU has rounded and packed anew; load the model again"
    if weight.dtype != torch.uint8:
        return f"codes stored as {weight.dtype}; load it with bnb_4bit_quant_storage=torch.uint8"
    if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
        return "a bias that is trained, whose gradient bitsandbytes does not define; freeze it"
    wrong = [dtype for dtype in (held.dtype, layer.compute_dtype or torch.float32) if dtype not in _DTYPES]
    if wrong:
        return f"weights of {wrong[0]}, of which a program has no numbers; load it with dtype=torch.bfloat16"
    if held.shape[1] % held.blocksize or (held.nested and held.state2.blocksize != 256):
        return (
            f"rows of {held.shape[1]} weights in blocks of {held.blocksize}, of which a row has to have whole ones: "
            "bitsandbytes scales others otherwise on CPUs than on GPUs"
        )
    return ""


def words(tensor: Tensor) -> Tensor:
    """Bytes as i64 words, [ceil(n / 256) * 32], on the same memory if they fill it; other tensors as they are."""
    if tensor.dtype != torch.uint8:
        return tensor
    flat = tensor.as_subclass(Tensor).flatten()
    left = -len(flat) % _UNIT
    return (F.pad(flat, (0, left)) if left else flat).view(torch.int64)


class _Library:
    """A layer as bitsandbytes has it outside of captures, on what its buffers hold now."""

    support_avx512bf16_for_cpu = False  # else evaluations round the scales, and pack the weights in another order

    def __init__(self, layer: Any) -> None:
        held, state = layer._buffers, copy.copy(layer.quant_state)
        self._layer, count = layer, math.prod(state.shape)
        state.absmax, state.code = held[SCALES], held[MAP].float()
        if state.nested:
            state.absmax, state.offset = _bytes(held[SCALES], count // state.blocksize), held[OFFSET].float()
            state.state2 = copy.copy(state.state2)
            state.state2.absmax, state.state2.code = held[NESTED_SCALES].float(), held[NESTED_MAP].float()
        else:
            state.absmax = state.absmax.float()
        self.weight = _bytes(held[CODES], count // 2)[:, None]
        self.weight.quant_state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _bytes(packed: Tensor, count: int) -> Any:
    return packed.view(torch.uint8)[:count]


@contextmanager
def as_state(model: nn.Module) -> Iterator[None]:
    """Makes buffers of all that is saved of 4-bit weights (1), which bitsandbytes then computes with (2).

    Layers that it is done to already stay as they are.
    """
    check(model)
    with ExitStack() as stack:
        for layer in [layer for layer in layers(model).values() if SCALES not in layer._buffers]:
            saved = {name: words(t) for name, t in layer.state_dict().items() if name.partition(".")[0] == CODES}
            parameters = {name: parameter for name, parameter in layer._parameters.items() if name != CODES}
            apart = {OFFSET: layer.quant_state.offset} if layer.quant_state.nested else {}
            own = {"_non_persistent_buffers_set": {*apart}, "forward": partial(_eager, layer)}
            stack.enter_context(replaced(layer, _parameters=parameters, _buffers=saved | apart, **own))
        yield


def _eager(layer: Any, x: Tensor) -> Any:
    return type(layer).forward(_Library(layer), x)


@contextmanager
def decoded(model: nn.Module) -> Iterator[None]:
    """Lets a trace see what 4-bit weights are computed from, and how (3)."""
    with ExitStack() as stack:
        for layer in layers(model).values():
            if SCALES in layer._buffers:
                stack.enter_context(replaced(layer, forward=partial(_traced, layer)))
        yield


def _traced(layer: Any, x: Tensor) -> Tensor:
    """The output of `Linear4bit.forward`."""
    dtype = layer.compute_dtype if layer.compute_type_is_set and layer.compute_dtype is not None else x.dtype
    held = torch.float32 if dtype == torch.float16 else dtype
    bias = None if layer.bias is None else _rounded(layer.bias.to(held), dtype)
    found: Tensor = _Product.apply(x.to(held), bias, layer, dtype)  # type: ignore[no-untyped-call]
    return found.to(x.dtype)


class _Product(torch.autograd.Function):
    """x W' + b, as bitsandbytes' `MatMul4Bit` computes it and the gradient of x, in numbers of `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layer: Any, dtype: torch.dtype) -> Tensor:
        ctx.layer, ctx.dtype = layer, dtype
        return _rounded(F.linear(_rounded(x, dtype), numbers(layer, dtype), bias), dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight = _rounded(numbers(ctx.layer, ctx.layer.quant_state.dtype).to(gradient.dtype), ctx.dtype)
        return _rounded(_rounded(gradient, ctx.dtype) @ weight, ctx.dtype), None, None, None


def numbers(layer: Any, dtype: torch.dtype) -> Tensor:
    """The weight of a layer, (out, in), as its dequantization defines it, from its buffers."""
    held, state, count = layer._buffers, layer.quant_state, math.prod(layer.quant_state.shape)
    scales = held[SCALES]
    if state.nested:
        outer = held[NESTED_SCALES][:, None].expand(-1, state.state2.blocksize).flatten()
        codes = _unpacked(scales, count // state.blocksize)
        scales = held[NESTED_MAP][codes] * outer[: len(codes)] + held[OFFSET]
    pairs: Tensor = F.embedding(_unpacked(held[CODES], count // 2), held[MAP][_NIBBLES])
    found: Tensor = pairs.view(-1, state.blocksize) * scales[:, None]
    found = _rounded(found.view(tuple(state.shape)), dtype)
    return found if dtype == torch.float16 else found.to(dtype)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return to_f16(x) if dtype == torch.float16 else x


def to_f16(x: Tensor) -> Tensor:
    """The numbers of float16 nearest to those of FP32, ties to even, in FP32: infinite from 65,520 on.

    The sum of x and 1.5 * 2^(e + 13), for |x| in [2^e, 2^(e + 1)), has an ulp of 2^(e - 10), that of float16 there;
    2^e is found as in Rump, Ogita and Oishi's "Accurate floating-point summation" (2008).
    """
    size = x.abs().clamp(2.0**-14, 2.0**17) * (2**23 + 1)
    shift = (size - size * (1 - 2**-24)) * (1.5 * 2**13)
    near = (x + shift) - shift
    signed = torch.where(near == 0, x * 0, near)
    return torch.where(near.abs() < 2**16, signed, x * 2.0**120)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    """The first bytes of words, i64; floors make the same of negative words."""
    found: Tensor = torch.ops.tiebreak.again(packed)[:, None] // _PLACES % 256
    return found.flatten()[:count]
