"""The Triton kernels, compiled for GPUs that need not be here, and what their machine code consists of.

    python -m benchmarks.kernels        writes results/kernels.json; no GPU, no interpreter

Exits with 1 if a kernel breaks a rule of `faults`. Nothing runs, so nothing here is a time.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.real_models import make_real_task
from benchmarks.table import placed, publish, rows_of
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import chains, hashing, indices, integers, operands, sums
from tiebreak.engine.arithmetic.gpu.kernels import chains as chain_kernels
from tiebreak.engine.arithmetic.gpu.kernels import hashing as hash_kernels
from tiebreak.engine.arithmetic.gpu.kernels import integers as integer_kernels
from tiebreak.engine.arithmetic.gpu.kernels import near_ties as settling_kernels
from tiebreak.engine.arithmetic.gpu.kernels import products as product_kernels
from tiebreak.engine.arithmetic.gpu.kernels import random as draw_kernels
from tiebreak.engine.arithmetic.gpu.kernels import scatter as scatter_kernels
from tiebreak.engine.arithmetic.gpu.kernels import sums as sum_kernels
from tiebreak.engine.arithmetic.gpu.operands import OperandLayout
from tiebreak.engine.arithmetic.gpu.sums import Form
from tiebreak.engine.arithmetic.plan.chains import ChainCode, Member, members_of
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode

TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
}
"""A100, H100 and H200, B200, MI300; and the cards with little FP64, on which large products go by integers."""
triton.knobs.amd.use_buffer_ops = False  # as where they are launched
SHARED: Final = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB of shared memory that a program may have; 99 on the others (CUDA's programming guide, compute capabilities)."""
INTEGERS: Final = {
    "measure": integers.FACTS, "measure: few rows": integers.FACTS | integers.FEW, "find_residues": integers.FACTS,
    "multiply_residues": integers.TILE, "multiply_residues: parts": integers.TILE, "join_fractions": integers.ENDS,
}  # fmt: skip
"""The kernels of products by integers, their blocks, and the compiler's options."""
MATRIX: Final = {"sm_80": "mma.sync.aligned.m8n8k4.row.col.f64", "sm_90": "mma.sync.aligned.m16n8k16.row.col.f64"}
"""The FP64 matrix instruction that a target must use, the widest that it has."""
MATRICES: Final = {
    f"product {'NT'[not a]}{'TN'[not b]}": (OperandLayout(a, 4, 1, 4), OperandLayout(b, 4, 1, 4))
    for a in (True, False) for b in (True, False)
}  # fmt: skip
"""`product` by the layouts of its operands, as in BLAS: N is row-major, T transposed."""
CONVOLUTIONS: Final = {
    "product: a convolution": (OperandLayout(True, 4, 1, 4), OperandLayout(False, None, 2, 1)),
    "product: 1 x 1": (OperandLayout(True, 4, 1, 4), OperandLayout(False, None, 4, 4)),
    "product: gradient of images": (OperandLayout(True, None, 4, 4), OperandLayout(True, None, 4, 4)),
    "product: gradient of weights": (OperandLayout(True, None, 4, 4), OperandLayout(True, None, 4, 1)),
}
"""`product` by the layouts of images whose width has a remainder of 2 by 4, of others, of copies, and of weights."""
PRODUCTS: Final = MATRICES | CONVOLUTIONS
KERNELS: Final = (
    *PRODUCTS, "norms", "contract_twice", "add_up", "add_parts", "settle", "round_listed", "find_greatest",
    "add_up: softmax", "settle: softmax", "find_greatest: softmax",
)  # fmt: skip
"""The kernels of sums. A softmax's have a prologue: exp(x - max)."""
_SCATTERED: Final = "*fp32" + 9 * " *i64" + 4 * " i32"
OTHERS: Final[dict[str, tuple[Any, dict[str, Any], str]]] = {
    "hash_chunks": (hash_kernels.hash_chunks, hashing.OPTIONS, "*i32 *i32 *i64 *i64 *i64 *i64 i32 i32"),
    "hash_nodes": (hash_kernels.hash_nodes, hashing.OPTIONS, "*i32 *i32 *i64 *i64 *i32 i32 i32"),
    "add_terms": (scatter_kernels.add_terms, indices.OPTIONS, f"{_SCATTERED} *fp64 *fp64"),
    "decide_sums": (
        scatter_kernels.decide_sums,
        indices.OPTIONS,
        "*fp64 *fp64 *fp32 *i64 *i64 *i32 *i64 *i64 i32 i32 fp32",
    ),
    "add_open": (scatter_kernels.add_open, indices.OPTIONS, f"{_SCATTERED} *i64 *i64 *i64 i32 i32"),
    "copy_lanes": (product_kernels.copy_lanes, operands.OPTIONS, "*fp32 *fp32" + 5 * " i32"),
    "permute": (draw_kernels.permute, indices.OPTIONS, "*i64 *i64 *i64 *i64 i32 i64 i32 i32"),
}
"""Kernels of other things than sums, their options, and the types of their arguments in order."""
CHAINS: Final = {
    "AdamW": MapFunction.SQRT, "GELU": MapFunction.TANH, "dropout": chains.RANDOM, "log": MapFunction.LOG,
    "erf": MapFunction.ERF, "sin": MapFunction.SIN,
}  # fmt: skip
"""The longest chain of a step of GPT-2 that has this operation; of erf and sin, the function alone."""
APART: Final = (
    (r"mul\.rn\.f64", "DMUL"), (r"(add|sub)\.rn\.f64", "DADD"),
    (r"mul\.rn\.f32", "FMUL"), (r"(add|sub)\.rn\.f32", "FADD"),
)  # fmt: skip
"""Products and sums in PTX, and what they are in SASS."""
POINTERS: Final = {DType.F32: "*fp32", DType.I64: "*i64", DType.BOOL: "*i1"}
BYTES: Final = {
    **dict.fromkeys(("left", "right"), "*i8"),
    **dict.fromkeys(("powers", "listed"), "*i32"),
    **dict.fromkeys(("x", "sizes", "out"), "*fp32"),
    **dict.fromkeys(("batches_at", "out_batch", "loose", "numbers", "folds", "fractions", "found"), "*i64"),
    **dict.fromkeys(("reach", "share"), "fp32"),
    "to": "*i8",
}
"""The types of arguments of `INTEGERS`; of the others i32."""
KINDS: Final = {
    "a": "*fp32",
    "b": "*fp32",
    "out": "*fp32",
    "left": "*fp64",
    "listed": "*i32",
    "sizes": "*fp64",
    "coefficient": "fp32",
}
NUMBERS: Final = (
    "room", "most", "m", "n", "k", "batches", "step", "run_batch", "run_k", "parts", "elements",
    "cut", "cuts", "a_step", "b_step", "out_step",
)  # fmt: skip
BINARIES: Final = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass(frozen=True)
class MachineCode:
    """A kernel as compiled for a target, and what its machine code shows."""

    target: str
    assembly: str
    code: str
    """SASS for NVIDIA's targets, whose `assembly` is PTX; for AMD both are its assembly."""
    products: int
    """The FMAs of one step of `tl.dot` in a thread, where there is no matrix instruction."""
    registers: int
    spilled: int
    """Bytes of registers that each thread keeps on its stack."""
    shared: int
    """Bytes of shared memory of a program."""
    layouts: str
    """Triton's own intermediate code for GPUs, which says where in shared memory and in which lane each number is."""

    def count(self, pattern: str, *, code: bool = False) -> int:
        """The instructions that begin with a pattern."""
        text = self.code if code else self.assembly
        return sum(n for name, n in _operations(text).items() if re.match(pattern, name))


def _operations(text: str) -> Counter[str]:
    return Counter(
        re.findall(r"^\s+(?:/\*[0-9a-f]+\*/\s+)?(?:@!?%?U?\w+\s+)?([A-Za-z]\w*(?:\.\w+)*)", text, re.MULTILINE)
    )


def assemble(name: str, kernel: str, precision: int, **options: Any) -> MachineCode:
    """Compiles one of `KERNELS`, `OTHERS` or `CHAINS` for a target; options: changed constants and compiler options."""
    if kernel in CHAINS:
        return _machine(name, _assemble_chain(TARGETS[name], _chain(kernel), precision, options), 0)
    if kernel in OTHERS:
        function, known, kinds = OTHERS[kernel]
        constants = {"PRECISION": precision, "BLOCK": known["BLOCK"], "point_step": 1}
        constants = {key: value for key, value in constants.items() if key in function.arg_names}
        others = iter(kinds.split())
        signature = {n: "constexpr" if n in constants else next(others) for n in function.arg_names}
        return _compiled(name, function, signature, constants, {k: v for k, v in known.items() if k.islower()}, 0)
    if kernel in INTEGERS:
        return _assemble_integers(name, kernel, precision, options)
    function, known = _function(kernel), _known(TARGETS[name], kernel) | options
    # As Triton takes them in a launch.
    ones = {"run_batch": 1, "run_k": 1} if function is settling_kernels.settle else {}
    constants = {
        "PRECISION": precision,
        "LEAVE": False,
        "FLUSH": sums.FLUSH,
        "PLACE": False,
        **dict.fromkeys(("sums", "errors", "packed", "notes", "numbers", "loose", "CHAIN"), None),
        **({"digits": None} if function is settling_kernels.settle else {}),
    }
    for layout, tables in zip(PRODUCTS.get(kernel, ()), (("a_m", "a_k"), ("b_n", "b_k")), strict=False):
        constants |= dict.fromkeys(() if layout.step is None else tables, None)
    constants |= dict.fromkeys(("a_m", "a_k", "b_n", "b_k") if kernel == "norms" else (), None)
    constants |= dict.fromkeys(("out_m", "out_n") if kernel in MATRICES else (), None)
    if function not in (sum_kernels.add_parts, product_kernels.norms, product_kernels.product):
        constants["sizes"] = None
    constants |= {key: value for key, value in known.items() if key.isupper()} | ones
    made: dict[str, Any] = {}
    if kernel.endswith("softmax"):
        code = _softmax()
        constants["CHAIN"] = _chain_constants(TARGETS[name], code, precision)["CHAIN"]
        made = {"a": _pointers(code), "numbers": ("i64",) * len(code.numbers), "notes": "*i64"}
    constants = {key: value for key, value in constants.items() if key in function.arg_names and key not in made}
    given = {key: value for key, value in known.items() if key.islower()}
    signature = {n: "constexpr" if n in constants else made.get(n, "i32" if n in NUMBERS else KINDS.get(n, "*i64"))
                 for n in function.arg_names}  # fmt: skip
    products = 0
    if "BLOCK_N" in known:
        volume, lanes = known["BLOCK_M"] * known["BLOCK_N"] * known["BLOCK_K"], TARGETS[name].warp_size
        products = (3 if kernel == "contract_twice" else 1) * volume // (given["num_warps"] * lanes)
    return _compiled(name, function, signature, constants, given, products)


def _function(kernel: str) -> Any:
    """The function of one of `KERNELS` or `INTEGERS`; a chain has none."""
    own, modules = re.split(r"\W", kernel)[0], (product_kernels, settling_kernels, sum_kernels, integer_kernels)
    return next((getattr(module, own) for module in modules if hasattr(module, own)), None)


def _assemble_integers(name: str, kernel: str, precision: int, options: dict[str, Any]) -> MachineCode:
    function, own = _function(kernel), INTEGERS[kernel]
    known = {**own, "ALONG": True, "RUN": 1, "UNIT": 4, "PRECISION": precision, **options}
    known |= dict.fromkeys(("own", "terms", "out_m", "out_n"), None)
    known |= {"fractions": None} if kernel == "multiply_residues" else {}
    constants = {key: value for key, value in known.items() if key in function.arg_names}
    kinds = {**BYTES, "unit": "fp32" if "measure" in kernel else "i32"}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in function.arg_names}
    return _compiled(name, function, signature, constants, {k: v for k, v in own.items() if k.islower()}, 0)


def _known(target: GPUTarget, kernel: str) -> dict[str, Any]:
    """The blocks and other constants of one of `KERNELS`, and the compiler's options."""
    arch = target.arch if target.backend == "cuda" else 0
    tile, settled = sums.tile(target.backend, arch), {"MANY": sums.MANY, "MATRIX": True, "FIRST": 0, "SLICES": 12}
    layouts = PRODUCTS.get(kernel, PRODUCTS["product NN"])
    sides = Form(layouts, None, 0, 0).options
    steps, alone = {"A_STEP": 0, "B_STEP": 0}, kernel.endswith("softmax")
    if kernel in PRODUCTS:
        return {**sums.product_tile(target.backend, arch, 1024, tables=kernel in CONVOLUTIONS), **sides}
    known: dict[str, dict[str, Any]] = {
        "norms": {**sums.NORMS, **sides},
        "contract_twice": {"MANY": sums.MANY, **sums.twice(tile)},
        "add_parts": {"MATRIX": True, **sums.PARTS},
        "round_listed": {**settled, **sums.PARTS},
    }
    if kernel.startswith("settle"):
        settled |= {"MATRIX": False, "FIRST": 3, "SLICES": 6} if alone else {}
        return {"PAIRS": not alone, **steps, **settled, **sums.settling(target.backend, 1 << 12, prologue=alone)}
    return known.get(kernel, {"BLOCK_M": 8 >> alone, "BLOCK_K": 128, "PAIRS": not alone, **steps, **sums.OPTIONS})


def _compiled(
    name: str, function: Any, signature: dict[str, str], constants: dict[str, Any], given: dict[str, Any], products: int
) -> MachineCode:
    target = TARGETS[name]
    made = triton.compile(ASTSource(function, signature, constants, _aligned(signature)), target=target, options=given)
    return _machine(name, made, products)


def _aligned(signature: dict[str, Any]) -> dict[tuple[int, ...], list[list[Any]]]:
    """Triton's attributes of pointers to multiples of 16 bytes, as all of a launch are."""
    kinds = {(at,): kind for at, kind in enumerate(signature.values()) if isinstance(kind, str)}
    kinds |= {
        (at, n): k for at, kind in enumerate(signature.values()) if (at,) not in kinds for n, k in enumerate(kind)
    }
    return {at: [["tt.divisibility", 16]] for at, kind in kinds.items() if kind.startswith("*")}


class Codes:
    """Keeps the code of chains, in place of what runs them."""

    functions = chains.LaunchedChains.functions
    repeats, prologues = chains.LaunchedChains.repeats, False

    def __init__(self) -> None:
        self.made: list[chains.KernelCode] = []

    def make(self, members: Sequence[Member]) -> chains.KernelCode:
        self.made.append(chains.KernelCode(ChainCode(members)))
        return self.made[-1]


@cache
def _codes() -> list[chains.KernelCode]:
    """The chains of a step of GPT-2, and two functions that it does not have."""
    arithmetic, codes, x = Arithmetic(), Codes(), torch.empty(4096)
    arithmetic.chains = codes  # type: ignore[assignment]  # nothing runs
    Interpreter(capture_task(make_real_task("gpt2-small", steps=1)).program, arithmetic)
    others = (
        Instruction(opcode=Opcode.MAP, function=f, dtype=DType.F32, shape=(4096,), operands=(Access(0, 0, (1,)),))
        for f in (MapFunction.ERF, MapFunction.SIN)
    )
    return [*codes.made, *(chains.KernelCode(ChainCode(members_of([i], [x]))) for i in others)]


def _chain(name: str) -> chains.KernelCode:
    having = [code for code in _codes() if any(operation.code == CHAINS[name] for operation in code.operations)]
    return max(having, key=lambda code: len(code.operations))


def _softmax() -> chains.KernelCode:
    """exp(x - max) of rows of 512, without memory for it."""
    common: dict[str, Any] = {"opcode": Opcode.MAP, "dtype": DType.F32, "shape": (8, 512)}
    less = Instruction(function=MapFunction.SUB, operands=(Access(0, 0, (512, 1)), Access(1, 0, (1, 0))), **common)
    exp = Instruction(function=MapFunction.EXP, operands=(Access(2, 0, (512, 1)),), **common)
    members = members_of([less, exp], [torch.empty(4096), torch.empty(8)])
    return chains.KernelCode(ChainCode([replace(member, exported=False) for member in members]))


def _pointers(code: chains.KernelCode) -> tuple[str, ...]:
    """The types of a chain's pointers: results first."""
    made = (store.member.instruction.dtype for store in code.code.stores)
    return tuple(POINTERS[dtype] for dtype in (*made, *(code.code.inputs[index][0] for index, _ in code.reads)))


def _chain_constants(target: GPUTarget, code: chains.KernelCode, precision: int, **changed: Any) -> dict[str, Any]:
    constants = code.constants(precision, target.backend, target.arch if target.backend == "cuda" else 0)
    (wide, apart, _), *operations = constants["CHAIN"]
    chain = (wide, changed.get("APART", apart), precision), *map(tuple, operations)
    return constants | {"CHAIN": chain, "STORES": tuple(map(tuple, constants["STORES"]))}


def _assemble_chain(target: GPUTarget, code: chains.KernelCode, precision: int, options: dict[str, Any]) -> Any:
    """Compiles a chain as for a launch with memory at multiples of 16 bytes, and a multiple of 16 elements."""
    constants = _chain_constants(target, code, precision, **options)
    options = {key: value for key, value in options.items() if key.islower()}
    signature = {"notes": "*i64", "pointers": _pointers(code), "numbers": ("i64",) * len(code.numbers), "count": "i32"}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(chain_kernels.run, signature, constants, _aligned(signature) | {(3,): [["tt.divisibility", 16]]})
    return triton.compile(source, target=target, options={**chains.OPTIONS, **options})


def _machine(name: str, made: Any, products: int) -> MachineCode:
    if TARGETS[name].backend == "hip":
        text = made.asm["amdgcn"]
        registers, spilled = (_found(pattern, text) for pattern in (r"\.vgpr_count:\s+(\d+)", r"ScratchSize: (\d+)"))
        return MachineCode(name, text, text, products, registers, spilled, made.metadata.shared, made.asm["ttgir"])
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        code = _told("nvdisasm", "-c", str(binary))
        usage = _told("cuobjdump", "-res-usage", str(binary))
    registers, spilled = _found(r"REG:(\d+)", usage), _found(r"STACK:(\d+)", usage)
    return MachineCode(
        name, made.asm["ptx"], code, products, registers, spilled, made.metadata.shared, made.asm["ttgir"]
    )


def _told(tool: str, *arguments: str) -> str:
    return subprocess.run([BINARIES / tool, *arguments], capture_output=True, text=True, check=True).stdout


def _found(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])


def faults(machine: MachineCode) -> list[str]:
    """The places where a kernel may round otherwise than `tiebreak.engine.arithmetic.plan.ziv` proves.

    1. Nothing flushes subnormals or approximates. 2. No product joins a sum in one FMA, except in `tl.dot`, whose
    products are exact. 3. What PTX rounds apart, SASS does too. 4. Products use the widest matrix instruction.
    """
    found = []
    if TARGETS[machine.target].backend == "hip":
        for mode in ("float_denorm_mode_32 3", "float_denorm_mode_16_64 3"):  # 1
            found += [] if f".amdhsa_{mode}" in machine.assembly else [f"expected {mode}"]
        return found
    found += [name for name in _operations(machine.assembly) if re.search(r"\.(ftz|approx|full)\b", name)]  # 1
    divides = machine.count(r"(div|sqrt)\.rn\.f32")
    own = "U?F2I|FMUL|FADD|FSETP" if divides else "U?F2I"  # ptxas' own way to these, and i32 / i32
    found += [name for name in _operations(machine.code) if ".FTZ" in name and not re.match(own, name)]
    found += [
        name for name in _operations(machine.assembly) if re.match(r"(add|sub|mul|div|sqrt)\.f(32|64)", name)
    ]  # 2
    found += [name for name in _operations(machine.code) if name.startswith("FFMA2")]
    matrix = MATRIX.get(machine.target)
    wanted, fma = 0 if matrix else machine.products, machine.count(r"fma\.")
    found += [f"expected {wanted} FMAs, got {fma}"] if fma != wanted else []
    for apart, together in APART:  # 3
        least = machine.count(apart)
        got = machine.count(rf"U?{together}(?!\.FTZ)", code=True)
        got += machine.count(f"{together}2", code=True)  # two at once
        found += [f"expected {least} {together} or more, got {got}"] if got < least else []
    if matrix and machine.products and not (machine.count(re.escape(matrix)) and machine.count("DMMA", code=True)):  # 4
        found.append(f"expected {matrix}, got none")
    return found


# ---- main loops ----


def delays(machine: MachineCode, narrow: tuple[str, ...] = ()) -> list[str]:
    """Names what keeps the matrix unit waiting in the main loop of a product.

    1. Registers that are spilled there. 2. Copies of less than 16 bytes, unless `narrow`. 3. Fewer than two
    steps whose copies are under way while one is computed. 4. Lanes that ask one bank of shared memory for more than
    two words at once.
    """
    loop = _main_loop(machine.code)
    names = [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in loop]
    spills = sum(name.startswith(("LDL", "STL")) for name in names)
    found = [f"{spills} accesses to spilled registers"] if spills else []
    copies = [name for name in names if name.startswith("LDGSTS")]
    found += [f"a copy by {name}" for name in sorted(set(copies)) if not name.endswith((".128", *narrow))]
    waits = [int(one[1], 16) for one in (re.search(r"DEPBAR\.LE SB0, (0x\w+)", line) for line in loop) if one]
    ahead = min(waits, default=0) // max(1, names.count("LDGDEPBAR"))
    found += [] if copies and ahead >= 2 else [f"copies of {ahead} steps under way"]
    forms = conflicts(machine.layouts)
    found += [] if len(forms) >= 4 else [f"expected layouts of two copies and two loads or more, got {forms}"]
    return found + [f"{ways} words of one bank: {what}" for what, ways in forms if ways > 2]


def _main_loop(code: str) -> list[str]:
    """The instructions of the shortest loop in SASS that has matrix instructions."""
    lines: list[str] = []
    labels, loops = {}, []
    for line in code.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*)", line):
            lines.append(instruction[1])
            if (jump := re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction[1])) and jump[1] in labels:
                loops.append(lines[labels[jump[1]] :])
    return min((loop for loop in loops if any(re.search("[DI]MMA", line) for line in loop)), key=len, default=[])


def conflicts(layouts: str) -> list[tuple[str, int]]:
    """Names each copy of a tile of f32 or bytes to shared memory, and each load from there; counts its bank conflicts.

    These are the most words of one of 32 banks that lanes ask for at once: all 32 by words, 8 by 16 bytes. Lanes and
    words are those of the layouts in Triton's code; a load by words (LDS) or of 8 rows of 16 bytes (LDSM) asks for the
    same.
    """
    known = dict(re.findall(r"^(#\w+) = (#.*)$", layouts, re.MULTILINE))
    tile = r"(\d+)x(\d+)x"
    copy = rf"(ttg\.async_copy_global_to_local) .* : tensor<{tile}!tt\.ptr<(f32|i8)>, (#\w+)> -> <[^,]*, (#\w+),"
    load = rf"(ttg\.local_load) .* : !ttg\.memdesc<{tile}(f32|i8), (#\w+),.* -> tensor<[^,]*, (#.*?)> loc"
    forms = {(op, int(m), int(n), of, lanes, shared) for op, m, n, of, lanes, shared in re.findall(copy, layouts)}
    forms |= {(op, int(m), int(n), of, lanes, shared) for op, m, n, of, shared, lanes in re.findall(load, layouts)}
    found = [(op, m, n, known.get(lanes, lanes), known[shared], of) for op, m, n, of, lanes, shared in sorted(forms)]
    return [(f"{op}, {m} x {n}, {lanes}", _ways(m, n, lanes, shared, op, 4 if of == "i8" else 1))
            for op, m, n, lanes, shared, of in found]  # fmt: skip


def _ways(m: int, n: int, lanes: str, shared: str, op: str, packed: int) -> int:
    """The most words of one bank that lanes ask for at once; a word holds `packed` numbers."""

    def numbers(name: str, text: str) -> list[int]:
        found = re.search(rf"{name} = \[?([\d, ]+)", text)
        assert found is not None, (name, text)
        return [int(number) for number in found[1].strip(", ").split(", ")]

    if "dot_op" in lanes:  # the fragments of FP64 matrix instructions: 8 rows of 4 terms, or 4 terms of 8 columns
        each, (own, other) = [1, 1], ((8, 4) if "opIdx = 0" in lanes else (4, 8))
        at = [(lane // 4, lane % 4) if "opIdx = 0" in lanes else (lane % 4, lane // 4) for lane in range(32)]
    else:
        each, counts, order = (numbers(name, lanes) for name in ("sizePerThread", "threadsPerWarp", "order"))
        fast = order[0]
        each[fast] //= packed
        at = [(lane // counts[fast], lane % counts[fast]) for lane in range(32)]
        at = [place if fast else place[::-1] for place in at]
        own, other = counts[0] * each[0], counts[1] * each[1]
    words = max(each) if "copy" in op else 1
    (vec,), (per,), (most,), order = (numbers(name, shared) for name in ("vec", "perPhase", "maxPhase", "order"))
    vec, m, n = vec // packed, m // (packed if order[0] == 0 else 1), n // (packed if order[0] == 1 else 1)
    width = (m, n)[order[0]]

    def word(place: tuple[int, int]) -> int:
        column, row = place[order[0]], place[order[1]]
        return row * width + (column // vec ^ row // per % most) * vec + column % vec

    worst = 0
    for top in range(0, m, own):
        for left in range(0, n, other):
            for first in range(0, 32, 32 // words):
                asked: dict[int, set[int]] = {}
                for row, column in at[first : first + 32 // words]:
                    begin = word(((top + row * each[0]) % m, (left + column * each[1]) % n))
                    for one in range(begin, begin + words):
                        asked.setdefault(one % 32, set()).add(one)
                worst = max(worst, *map(len, asked.values()))
    return worst


def _problems(machine: MachineCode, kernel: str) -> list[str]:
    """The faults and delays of a kernel, and whether its programs do not fit on a multiprocessor.

    What kernels of integers compute in FP32 is bounds, with room for contraction; they have no FP64. An H100 reads the
    operands of products of bytes in another way.
    """
    room = SHARED.get(machine.target, 99) << 10
    found = [f"expected {room} bytes of shared memory or less, got {machine.shared}"] if machine.shared > room else []
    if kernel in INTEGERS:
        found += [name for name in _operations(machine.assembly) if re.search(r"\.(approx|full)\b", name)]
        found += [name for name in _operations(machine.code) if re.search(r"F64|^D(ADD|MUL|FMA|SETP)", name)]
        return found + (delays(machine) if "multiply" in kernel and machine.target != "sm_90" else [])
    waits = kernel in PRODUCTS and machine.target in MATRIX
    narrow = (kernel in CONVOLUTIONS) * (".64", *(".E" for layout in PRODUCTS.get(kernel, ()) if layout.unit == 1))
    return found + faults(machine) + (delays(machine, narrow) if waits else [])


@click.command(help=__doc__)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Repeat it. [default: all]")
@placed
def main(folder: Path, targets: tuple[str, ...]) -> None:
    rows, wrong = [], []
    for name in targets or TARGETS:
        for kernel in (*KERNELS, *OTHERS, *CHAINS, *INTEGERS):
            if kernel in PRODUCTS and kernel != "product NN" and name not in MATRIX:
                continue  # layouts differ in copies and in loads of the matrix unit's operands
            if name == "gfx942" and kernel in INTEGERS:
                continue
            function = OTHERS[kernel][0] if kernel in OTHERS else _function(kernel)
            rounds = "PRECISION" in function.arg_names if function else kernel not in ("AdamW", "dropout")
            for precision in (32, 16) if rounds and kernel not in (*PRODUCTS,)[1:] else (32,):
                machine = assemble(name, kernel, precision)
                wrong += [f"{name}, {kernel}, {precision} bits: {one}" for one in _problems(machine, kernel)]
                if precision < 32:
                    continue
                fma = r"v_fmac?_f64" if name == "gfx942" else "DFMA"
                found = {
                    "registers": machine.registers,
                    "spilled bytes": machine.spilled,
                    "matrix instructions": machine.count(r"DMMA|IMMA|IGMMA|v_mfma", code=True),
                    "FP64 FMA": machine.count(fma, code=True),
                    "instructions": sum(_operations(machine.code).values()),
                }
                rows += rows_of(f"{name}, {kernel}", "", found)
    if wrong:
        raise click.ClickException("\n".join(wrong))
    publish("kernels", rows, "compiled, not run", folder=folder, environment=(("triton", triton.__version__),))


if __name__ == "__main__":
    main()
