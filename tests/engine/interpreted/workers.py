"""Workers of one run of which some launch Triton's kernels, and others compute in C or by torch alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from unittest import mock

from tests.engine.interpreted import Suite, main, ran_by
from tests.engine.interpreted.sums import small
from tests.engine.mixed_workers import STEPS, agree, perceptron
from tests.engine.together import train_alone, train_together
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.gpu import hashing
from tiebreak.engine.arithmetic.gpu.backend import GpuBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.distributed import partition

PAIRS = [pair for pair in permutations((GpuBackend, CBackend, TorchBackend), 2) if GpuBackend in pair]


@contextmanager
def quick() -> Iterator[None]:
    """Small blocks; and the host hashes states, which takes the interpreter twenty times as long as a sum."""
    with small(), mock.patch.object(hashing, "identities", return_value={}):
        yield


def shares(every: int) -> int:
    """Families of sum, in both orders of each pair; one worker at a time computes, for there is one interpreter."""
    with quick():
        return sum(agree(pair, 2, threading.Lock(), every) for pair in PAIRS)


def trains() -> int:
    """A model, by three workers with three back-ends."""
    captured, backends = perceptron(), [GpuBackend, CBackend, TorchBackend]
    with quick(), mock.patch.object(partition, "LEAST", 1):
        expected, _ = train_alone(captured, STEPS)
        records, _ = train_together(captured, 3, STEPS, backends=backends, turn=threading.Lock())
    assert records == expected
    return STEPS


SUITE = Suite(
    fast={"sums": lambda: shares(40)},
    slow={"sums": lambda: shares(4)},
    mutants=[],
    killed=dict,
)  # fmt: skip

if __name__ == "__main__":
    main(SUITE, long=lambda: ran_by({"sums": lambda: shares(1), "steps": trains}))
