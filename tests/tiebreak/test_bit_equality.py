"""Twenty-five steps of both demo jobs: the same bytes under every setting that may differ between two machines.

A step count selects which bugs can be seen, so these are not shorter. That plain PyTorch forks in the same matrix is
tested in test_plain.py: without that, equality here would prove nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from engine.compile import compile_task
from tiebreak.tasks.loader import load_task

ROOT = Path(__file__).resolve().parents[2]
STEPS = 25
SCRIPT = """
import json, sys, torch
from engine.arithmetic import Arithmetic
from engine.compile import compile_task
from engine.interpreter import Interpreter
from engine.tensors import from_bytes, identities
from protocol.commitments import state_tree
from safetensors.torch import load_file, save_file
from tiebreak.tasks.loader import load_task
name, threads, permute, folder = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
compiled = compile_task(load_task(name))
state = load_file(folder + "/state.safetensors")  # bytes that travel: initialisation is no constant
data = load_file(folder + "/data.safetensors")
machine = Interpreter(compiled.program, Arithmetic(permute=permute))
state, data = machine.to_device(state), machine.to_device(data)
losses = []
for step in range(1, 26):
    result = machine.step(step, state, data)
    state = result.state
    losses.append(result.loss_bits)
capability = torch.backends.cpu.get_cpu_capability()
print(json.dumps([compiled.program.root.hex(), state_tree(identities(state)).root.hex(), losses, capability]))
"""


@pytest.mark.parametrize("name", ["digits", "text"])
def test_one_state_for_threads_instruction_sets_and_orders(name: str, tmp_path: Path) -> None:
    compiled = compile_task(load_task(name))
    save_file(compiled.state, tmp_path / "state.safetensors")
    save_file(compiled.data, tmp_path / "data.safetensors")
    seen: dict[str, set[str]] = {"program": set(), "state": set(), "losses": set(), "capability": set()}
    for capability, threads, permute in (
        (None, 1, None),
        ("default", 1, 7),
        ("avx2", 2, 8),
    ):
        environment = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")}
        if capability is not None:
            environment["ATEN_CPU_CAPABILITY"] = capability
        command = [sys.executable, "-c", SCRIPT, name, str(threads), json.dumps(permute), str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        program, state, losses, found = json.loads(done.stdout)
        assert len(losses) == STEPS
        for key, value in (("program", program), ("state", state), ("losses", str(losses)), ("capability", found)):
            seen[key].add(value)
    assert {key: len(values) for key, values in seen.items() if key != "capability"} == {
        "program": 1,
        "state": 1,
        "losses": 1,
    }
    assert len(seen["capability"]) > 1  # the settings did take effect
