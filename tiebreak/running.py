"""Wires engine parts together for commands: an interpreter on a qualified device."""

import torch

from engine.arithmetic import Arithmetic
from engine.interpreter import Interpreter
from engine.qualify import qualify
from protocol.program import Program


def make_interpreter(
    program: Program, *, threads: int | None = None, permute: int | None = None, device: str = "cpu"
) -> Interpreter:
    """An interpreter whose device passed the conformance vectors. None of the settings changes a bit of any result.

    threads: of torch. permute: seed of the order in which every reduction takes its terms. Raises `ConfigurationError`
    if the device computes anything else than the specification says.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    qualify(Arithmetic(device=device, permute=permute))  # of its own, so that the run's statistics are the run's
    return Interpreter(program, Arithmetic(device=device, permute=permute))
