"""Triton kernels in Triton's interpreter, against integers, with mutants of the kernels that must die.

`python -m tests.engine.interpreted` runs a few checks of each kernel. `python -m tests.engine.interpreted.sums more`
runs more of the sums', and so for each module; `mutants` in place of `more` tries the mutants. Each prints a line of
JSON: how many cases each check ran; or what refuted each mutant, and all mutants. Processes of their own, because
Triton decides on its import whether it interprets.
"""

import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton import language
from triton.runtime import interpreter

from tests.engine.undefined import undefined
from tiebreak.engine.run import qualify

Mutants = list[tuple[Any, ...]]
"""Name, the check that fails with the changed kernels, and texts, each with what replaces it."""


class NoReads(TorchDispatchMode):
    """Refuses operations whose result the host waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = any(name in str(func) for name in ("local_scalar", "nonzero", "unique", "masked_select", "index.Tensor"))
        assert not read, f"expected no read by the host, got {func}"
        return func(*args, **(kwargs or {}))


def _reduce(self: Any, operands: Any) -> list[Any]:
    """Joins halves of a power of two, as a GPU does, all at once."""
    parts = [np.moveaxis(x.handle.data, self.axis, 0) for x in operands]
    while (half := len(parts[0]) // 2) > 0:
        each = (
            self.to_tensor(p[at], x.dtype) for at in np.s_[:half, half:] for p, x in zip(parts, operands, strict=True)
        )
        parts = [x.handle.data for x in self.combine_fn.fn(*each)]
    return [self.to_tensor(p[0], x.dtype) for p, x in zip(parts, operands, strict=True)]


def patch_index() -> None:
    """Triton 3.6.0 converts arrays of one element to `int`, which numpy 2.4 refuses.

    It also patches its language anew in each call of a function, which takes most of the time: once is enough here.
    So is one call for all rows of a reduction by a function of ours. Subnormals of bfloat16 become other numbers in it.
    """
    interpreter.ReduceOps.generic_reduce, convert = _reduce, interpreter._convert_float

    def converted(x: Any, source: Any, to: Any, how: Any) -> Any:
        widens = (source, to) == (language.bfloat16, language.float32)
        return x.astype(np.uint32) << 16 if widens else convert(x, source, to, how)

    interpreter._convert_float = converted
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def changed(changes: Sequence[str], *modules: ModuleType) -> ModuleType:
    """One module from the changed source of some, which import from those before them.

    changes: texts, each of which occurs once, with what replaces it.
    """
    text = "\n".join(Path(str(module.__file__)).read_text() for module in modules)
    text = re.sub(rf"(?m)^from ({'|'.join(module.__name__ for module in modules)}) import .*$", "", text)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mutant.py")
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("mutant", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def killed(mutants: Mutants, user: ModuleType, *kernels: ModuleType) -> dict[str, str]:
    """What refuted each mutant of `kernels`, which `user.kernels` returns as one; a mutant that lives is missing."""
    found = {}
    # All live until the end: Triton's interpreter takes a function at the address of one that is gone for that one.
    made = [(name, check, changed(changes, *kernels)) for name, check, *changes in mutants]
    for name, check_that_dies, module in made:
        with mock.patch.object(user, "kernels", return_value=module):
            if code := _exit_code(check_that_dies):
                found[name] = f"exit code {code}"
    return found


def _exit_code(check: Callable[[], object]) -> int:
    """0 if a check passes. It runs in a process of its own: a mutant may write where it must not, and end it."""
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code != 2, "the check itself failed"
        return code
    code = 2
    try:
        check()
        code = 0
    except (AssertionError, qualify.ConfigurationError):
        code = 1
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextmanager
def interpreting() -> Iterator[None]:
    """One thread, and numpy without warnings: infinities are among the values, and products of 32 bits wrap.

    What no kernel writes holds what is right nowhere, so whether a mutant dies does not depend on what memory held.
    """
    patch_index()
    torch.set_num_threads(1)
    with np.errstate(all="ignore"), undefined():
        yield


def tried(examples: int, holds: Callable[[int, int], int]) -> int:
    """Cases of a check, which returns how many, with so many seeds at precisions of 16 to 32 bits."""
    return sum(holds(seed, 32 - seed % 17) for seed in range(examples))


def ran_by(checks: Mapping[str, Callable[[], int]]) -> dict[str, int]:
    """Cases of each check, whose seconds so far are told as it ends."""
    ran = {}
    for name, check in checks.items():
        ran[name] = check()
        sys.stderr.write(f"{name}: {time.process_time():.1f} s\n")
    return ran


@dataclass(frozen=True)
class Suite:
    """Checks of some kernels: a few for every day, more of them, and mutants, of which `killed` names the dead."""

    fast: Mapping[str, Callable[[], int]]
    slow: Mapping[str, Callable[[], int]]
    mutants: Mutants
    killed: Callable[[], dict[str, str]]


def main(suite: Suite, **others: Callable[[], object]) -> None:
    parts = {
        "more": lambda: ran_by(suite.slow),
        "mutants": lambda: [suite.killed(), sorted(name for name, *_ in suite.mutants)],
    } | others
    with interpreting():
        sys.stdout.write(json.dumps(parts[sys.argv[1]]()) + "\n")
