"""Calls of the referee, encoded by hand: some thirty times as fast as a general encoder, for many thousand cases.

A call is 4 zero bytes, where its reader puts the selector, and the arguments. That this is the ABI's encoding is tested
against web3's (`tests/contracts/test_differential.py`).
"""

from collections.abc import Sequence

from tests.contracts.context import Context
from tiebreak.protocol.game.moves import ChunkOpening, Prove, StateWitness, TensorOpening, TensorWitness

SELECTOR = bytes(4)
_ZERO = bytes(32)
_WORDS = [k.to_bytes(32, "big") for k in range(1 << 12)]


def word(x: int) -> bytes:
    return _WORDS[x] if x < 1 << 12 else x.to_bytes(32, "big")


def _bytes(data: bytes) -> bytes:
    return word(len(data)) + data + bytes(-len(data) % 32)


def _words(digests: Sequence[bytes]) -> bytes:
    return word(len(digests)) + b"".join(digests)


def _tuple(parts: Sequence[tuple[bool, bytes]]) -> bytes:
    """Parts of (is dynamic, encoding): static ones in place, dynamic ones behind, at their offsets."""
    offset = sum(32 if dynamic else len(part) for dynamic, part in parts)
    head, tail = [], []
    for dynamic, part in parts:
        if dynamic:
            head.append(word(offset))
            tail.append(part)
            offset += len(part)
        else:
            head.append(part)
    return b"".join(head + tail)


def _array(items: Sequence[bytes]) -> bytes:
    return word(len(items)) + _tuple([(True, item) for item in items])


def _tensor(t: TensorOpening) -> bytes:
    dims = word(len(t.dims)) + b"".join(map(word, t.dims))
    return _tuple(
        [(False, word(t.value) + word(t.dtype)), (True, dims), (False, t.chunk_root), (True, _words(t.siblings))]
    )


def _chunk(c: ChunkOpening) -> bytes:
    return _tuple([(False, word(c.tensor) + word(c.chunk_index)), (True, _bytes(c.data)), (True, _words(c.siblings))])


def _witness(move: Prove) -> bytes:
    match move.witness:
        case StateWitness() as w:
            record = word(w.step) + w.state_root + word(w.loss_bits) + w.log_root
            return _tuple(
                [(False, record), (True, _words(w.record_siblings)), (False, w.tensor_id), (True, _words(w.siblings))]
            )
        case TensorWitness() as w:
            return _tuple([(False, _ZERO * 4), (True, _words(())), (False, w.tensor_id), (True, _words(w.siblings))])
    return _tuple([(False, _ZERO * 4), (True, _words(())), (False, _ZERO), (True, _words(()))])


def _proof(move: Prove) -> bytes:
    return _tuple(
        [
            (True, _bytes(move.instruction)),
            (True, _bytes(move.previous)),
            (True, _words(move.siblings)),
            (True, _array([_tensor(t) for t in move.tensors])),
            (True, _array([_chunk(c) for c in move.chunks])),
            (True, _witness(move)),
        ]
    )


def judge(context: Context, move: Prove) -> bytes:
    fields = b"".join(v if isinstance(v, bytes) else word(int(v)) for v in context.values)
    return SELECTOR + _tuple([(False, fields), (True, _proof(move))])


def describe(instruction: bytes, chunk_root: bytes) -> bytes:
    return SELECTOR + _tuple([(True, _bytes(instruction)), (False, chunk_root)])


def finish(kind: int, rounding: int, accumulator: bytes) -> bytes:
    return SELECTOR + _tuple([(False, word(kind) + word(rounding)), (True, _bytes(accumulator))])
