"""Compiles the Triton kernels for operands that are held in bfloat16: either one, or both.

`python -m tests.engine.held_kernels TARGET` prints their faults, what keeps them waiting, and how many there were. In a
process of its own, in which Triton does not interpret.
"""

import json
import sys
from collections.abc import Iterator

from benchmarks import kernels
from benchmarks.kernels import MachineCode, assemble


def compiled(target: str) -> Iterator[tuple[str, MachineCode, int]]:
    """Kernels by name, and the bytes that each spills with operands in f32."""
    usual = dict(kernels.KINDS)
    names = *kernels.PRODUCTS, "norms", "contract_twice", "add_up", "settle", "find_greatest"
    spilled = {name: assemble(target, name, 32).spilled for name in names}
    for held in ("a", "b", "ab"):
        kernels.KINDS.update(usual | dict.fromkeys(held, "*bf16"))
        for name in names:
            yield name, assemble(target, name, 32), spilled[name]
    kernels.BYTES["x"] = "*bf16"
    for name in ("measure", "measure: few rows", "find_residues") if target != "gfx942" else ():
        yield name, assemble(target, name, 32), 0


def main(target: str) -> None:
    made, faults, waits = 0, list[str](), list[str]()
    for name, code, spilled in compiled(target):
        faults += kernels._problems(code, name) if name in kernels.INTEGERS else kernels.faults(code)
        if name in kernels.PRODUCTS and target in kernels.MATRIX:
            waits += [wait for wait in kernels.delays(code, (".64", ".E")) if "layouts" not in wait]
        waits += [f"{name} spills {code.spilled} bytes, {spilled} in f32"] if code.spilled > spilled + 8 else []
        made += 1
    sys.stdout.write(json.dumps([faults, waits, made]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
