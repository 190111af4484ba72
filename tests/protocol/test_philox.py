"""Philox against Random123's known answers, and the shuffle as a permutation."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.oracles import value
from tiebreak.protocol.numbers.philox import philox4x32, random_bits, shuffle

KNOWN = [  # Random123 kat_vectors, philox4x32 10: counter, key, answer
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_matches_known_answers(counter: str, key: str, answer: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(answer)  # type: ignore[arg-type]


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40 - 1)
)
@settings(max_examples=100)
def test_random_float_is_the_top_24_bits_of_the_philox_word(seed: int, step: int, stream: int, index: int) -> None:
    counter = (index // 4 % 2**32, index // 4 // 2**32, step % 2**32, stream)
    word = philox4x32(counter, (seed % 2**32, seed // 2**32 % 2**32))[index % 4]
    found = value(random_bits(seed, step, stream, index))
    assert found * 2**24 == word >> 8
    assert 0 <= found < 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 257])
def test_shuffle_is_a_permutation(n: int, cases: Callable[[], None]) -> None:
    for seed, epoch, stream in ((0, 0, 0), (-5, 3, 9)):
        found = [shuffle(i, seed, epoch, n, stream) for i in range(n)]
        assert sorted(found) == list(range(n))
        assert n < 60 or found != list(range(n))
        cases()


def naive_shuffle(index: int, seed: int, epoch: int, n: int, stream: int) -> int:
    """SPEC section 7 to the letter, with bit strings for the halves."""
    bits = len(f"{n - 1:b}") if n > 1 else 0
    w = max(1, -(-bits // 2))
    key = (seed % 2**32, seed // 2**32 % 2**32)
    x = index
    while True:
        text = f"{x:0{2 * w}b}"
        left, right = int(text[:w], 2), int(text[w:], 2)
        for q in range(8):
            word = philox4x32((right, 2**31 + q, epoch % 2**32, stream), key)[0]
            left, right = right, left ^ (word % 2**w)
        x = left * 2**w + right
        if x < n:
            return x


@given(
    st.one_of(st.integers(1, 40), st.integers(1, 2**40)),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**34),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**40),
)
@settings(max_examples=100)
def test_shuffle_is_the_one_of_the_specification(n: int, seed: int, epoch: int, stream: int, index: int) -> None:
    found = shuffle(index % n, seed, epoch, n, stream)
    assert found == naive_shuffle(index % n, seed, epoch, n, stream)
    assert 0 <= found < n
    assert {shuffle(outside, seed, epoch, n, stream) for outside in (-1, n, n + index)} == {-1}
