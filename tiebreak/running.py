"""Wires engine parts together for commands: an interpreter on a qualified device."""

import torch

from engine.arithmetic import Arithmetic
from engine.interpreter import Interpreter
from engine.qualify import qualify
from protocol.errors import ConfigurationError
from protocol.program import Program


def usable_device(name: str) -> torch.device:
    """A device that this torch can compute FP64 on. Raises `ConfigurationError` for any other."""
    try:
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:  # of a device it has not
        raise ConfigurationError(
            f"expected a device that this torch computes FP64 on, such as cpu or cuda:0, got {name!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return device


def make_interpreter(
    program: Program, *, threads: int | None = None, permute: int | None = None, device: str = "cpu"
) -> Interpreter:
    """An interpreter whose device passed the conformance vectors. None of the settings changes a bit of any result.

    threads: of torch. permute: seed of the order in which every reduction takes its terms. Raises `ConfigurationError`
    if the device computes anything else than the specification says.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    found = usable_device(device)
    qualify(Arithmetic(device=found, permute=permute))  # of its own, so that the run's statistics are the run's
    return Interpreter(program, Arithmetic(device=found, permute=permute))
