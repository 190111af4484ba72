"""Ids of tensors."""

import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.engine.interpreted import Mutants, Suite, killed, main
from tests.engine.test_hashing import naive_tree
from tiebreak.engine.arithmetic.gpu import hashing
from tiebreak.engine.arithmetic.gpu.kernels import hashing as kernels
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.run import qualify
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.tags import Tag

NANS = np.array([NAN_BITS, 0x7F800001, 0xFF800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFC00000], dtype=np.uint32)


def plainly(tensor: Tensor) -> bytes:
    """The id by the words of SPEC sections 1 to 3 alone, in Python's integers and hashlib."""
    dtype, data = PROTOCOL_DTYPES[tensor.dtype], bytearray(tensor.contiguous().numpy().tobytes())
    if tensor.dtype == torch.float32:
        for at in range(0, len(data), 4):
            if int.from_bytes(data[at : at + 4], "little") & 0x7FFFFFFF > 0x7F800000:
                data[at : at + 4] = NAN_BITS.to_bytes(4, "little")
    dims = b"".join(dim.to_bytes(8, "big") for dim in tensor.shape)
    right = sha256(Tag.TENSOR.value + bytes([dtype, tensor.dim()]) + dims + naive_tree(bytes(data))[-1][0]).digest()
    assert right == identify(dtype, tuple(tensor.shape), bytes(data))  # the protocol's own, which must agree
    return right


def drawn(r: random.Random, size: int) -> Tensor:
    """A tensor of about this many bytes: of any dtype, any words with NaN among floats, at any address, turned."""
    words = np.frombuffer(r.randbytes(8 * (size // 8 + 2)), dtype=np.uint32).copy()
    match r.choice(["f32", "turned", "i64", "bool", "bool within"]):
        case "i64":
            return torch.from_numpy(words.view(np.int64))[: max(1, size // 8)]
        case "bool":
            return torch.from_numpy(words.view(np.uint8) > 99)[: max(1, size)]
        case "bool within":
            return torch.from_numpy(words.view(np.uint8) > 99)[1:][: max(1, size)]
        case kind:
            words[:: r.randint(1, 9)] = r.choice(NANS)
            x = torch.from_numpy(words.view(np.float32))[1:][: max(1, size // 4)]
            return x[: len(x) // 3 * 3].view(-1, 3).T if kind == "turned" and len(x) > 2 else x


def agrees(seed: int, *sizes: int) -> int:
    r = random.Random(seed)
    tensors = {str(n): drawn(r, size) for n, size in enumerate(sizes)}
    found = hashing.identities(tensors)
    assert {name: bytes(found[name]) for name in tensors} == {name: plainly(x) for name, x in tensors.items()}
    return len(tensors)


def short() -> int:
    """One block: floats with NaN, and bools that end inside a word."""
    x = torch.from_numpy(np.array([0x7F800000, *NANS, 0x3F800000], dtype=np.uint32).view(np.float32))
    tensors = {"nan": x, "bools": torch.tensor([True, False, True] * 7), "words": torch.tensor([-1, 1])}
    found = hashing.identities(tensors)
    assert {name: bytes(found[name]) for name in tensors} == {name: plainly(x) for name, x in tensors.items()}
    return len(tensors)


def pairs() -> int:
    """Trees of 1, 2 and 3 chunks beside each other; the chunks' digests are drawn, so only nodes are hashed."""
    r = random.Random(3)
    counts = [1, 2, 3, 1, 5]
    leaves = [[r.randbytes(32) for _ in range(count)] for count in counts]

    def put(kernel: object, programs: int, digests: Tensor, *others: object, **options: object) -> None:
        if kernel is chunks:
            words = np.frombuffer(b"".join(b"".join(level) for level in leaves), dtype=">i4").astype(np.int32)
            digests[: sum(counts)] = torch.from_numpy(words).view(-1, 8)
        else:
            launched(kernel, programs, digests, *others, **options)

    chunks, launched = hashing.kernels("hashing").hash_chunks, hashing.launch
    with mock.patch.object(hashing, "launch", put):
        found = hashing.roots([torch.zeros(64 * count, dtype=torch.int64) for count in counts])
    for level, root in zip(leaves, found, strict=True):
        empty = sha256(b"tb.empty").digest()
        while len(level) > 1:
            level = [*level, empty] if len(level) % 2 else level
            level = [sha256(b"tb.node." + level[n] + level[n + 1]).digest() for n in range(0, len(level), 2)]
            empty = sha256(b"tb.node." + empty + empty).digest()
        assert root == level[0]
    return len(counts)


def moves() -> int:
    """The host reads 32 bytes for each tensor that is hashed, once."""
    read = []
    real = Tensor.cpu
    with mock.patch.object(Tensor, "cpu", lambda x: read.append(x.nbytes) or real(x)):
        ran = short()
    assert read == [ran * 32]
    return ran


MUTANTS: Mutants = [
    ("a chunk for a node", pairs, "zero + NODE_TAG[1]", "zero + CHUNK_TAG[1]"),
    ("odd nodes with what follows", pairs,
     "left + 1 < tl.load(below + owner + 1)", "left + 1 < tl.load(below + tensors)"),
    ("the owner before", pairs, "<= places", "< places"),
    ("no bit behind the data", short, "return x | end", "return x"),
    ("NaN as it is", short, "0x7FC00000, x)", "x, x)"),
    ("infinity is NaN", short, "> 0x7F800000)", ">= 0x7F800000)"),
    ("every tensor has NaN", short, "= tl.load(floats + owner) != 0", "= tl.load(floats + owner) != 2"),
    ("bytes as they lie", short, "x = (x >> 24) |", "_ = (x >> 24) |"),
    ("a bit behind each word", short, "(past >= 0) & (past < 4)", "past < 4"),
    ("length of the data alone", short, "8 * (size + 8), 0", "8 * size, 0"),
    ("a rotation", short, "(e >> 11 | e << 21)", "(e >> 12 | e << 20)"),
    ("one block", lambda: agrees(5, 100), "tl.max(blocks, 0)", "1"),
    ("blocks of others", lambda: agrees(6, 20, 100), "block < blocks, after", "block < 9, after"),
]  # fmt: skip


def any_sizes() -> int:
    sizes = [max(1, at + d) for at in (0, 44, 48, 504, 512, 2048) for d in (-5, -1, 0, 1, 3)]
    return agrees(0, *random.Random(0).sample(sizes, 17), 9000)


def within(size: int, check: Callable[[], Any]) -> Callable[[], Any]:
    return mock.patch.dict(hashing.OPTIONS, BLOCK=size)(check)


SUITE = Suite(
    fast={"short": within(32, moves)},
    slow={
        "pairs": within(32, pairs), "sizes": within(256, any_sizes),
        "qualification": within(4096, lambda: qualify._compare_ids(qualify.Arithmetic())),
    },
    mutants=MUTANTS,
    killed=within(32, lambda: killed(MUTANTS, hashing, kernels)),
)  # fmt: skip

if __name__ == "__main__":
    main(SUITE)
