"""What a step on a GPU makes the host read: counted by place, and of the loss once."""

import numpy as np
import torch

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.native import pure_path
from tiebreak.engine.run.graphs import Reads
from tiebreak.engine.run.interpreter import loss_bits
from tiebreak.engine.run.worst import product
from tiebreak.protocol.numbers.float32 import NAN_BITS


def test_what_the_host_reads_is_named() -> None:
    x = torch.arange(4.0)
    with Reads() as reads:
        x.add(1).exp().sum()  # nothing
        x.index_select(0, torch.tensor([0, 2]))
        x[x > 1]
        x[torch.tensor([0, 2])]
        x.nonzero()
        x.max().item()
        x.to(torch.float64)
        x.to("meta")
        Arithmetic().execute(product(1, 2, 3, 2).instruction, [torch.ones(6), torch.ones(6)], 0)
    here = "in elsewhere"
    assert reads.seen == {f"{name} {here}": 1 for name in ("index", "nonzero", "_local_scalar_dense", "_to_copy")}
    with Reads() as reads, pure_path():
        Arithmetic().execute(product(1, 2, 3, 2).instruction, [torch.ones(6), torch.ones(6)], 0)
    assert {place.split(" in ")[1].split(".")[0] for place in reads.seen} <= {"sums", "settling", "rounding"}
    assert reads.seen


def test_the_loss_is_read_once_and_its_nan_is_canonical() -> None:
    nans = (0x7F800001, 0xFF800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, NAN_BITS)
    others = (0, 1, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000)
    with Reads() as reads:
        for bits_of_it in (*nans, *others):
            loss = torch.from_numpy(np.array(bits_of_it, dtype=np.uint32).view(np.float32))
            assert loss_bits(loss) == (NAN_BITS if bits_of_it in nans else bits_of_it)
    assert reads.seen == {"_local_scalar_dense in interpreter.loss_bits": len(nans) + len(others)}
