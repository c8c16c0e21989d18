"""Python's `random.Random`, bit for bit, as a value that can be copied and stored.

Gavel draws its jobs, shuffles and pairs from `random.Random`. To reproduce its numbers, the same bits must be drawn in
the same order; the core must not import `random`, whose state does not fit into a snapshot. MT19937 words are computed
in blocks of 624.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Words: TypeAlias = NDArray[np.uint32]

_SIZE = 624
_SHIFT = 397
_UPPER = np.uint32(0x80000000)
_LOWER = np.uint32(0x7FFFFFFF)
_ODD = np.uint32(0x9908B0DF)
_WORD = 0xFFFFFFFF


class Mersenne:
    """A stream of random numbers that is equal to that of `random.Random(seed)`."""

    __slots__ = ("_key", "_next", "_words")

    def __init__(self, seed: int) -> None:
        """Seed with any integer; as in Python, its sign is ignored."""
        self._key = _key_of_seed(abs(seed))
        self._words: list[int] = []
        self._next = _SIZE

    def random(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return ((self._word() >> 5) * 67108864.0 + (self._word() >> 6)) / 9007199254740992.0

    def uniform(self, low: float, high: float) -> float:
        """A number between *low* and *high*."""
        return low + (high - low) * self.random()

    def randrange(self, stop: int) -> int:
        """An integer from 0 to *stop* - 1."""
        if stop < 1:
            raise ValueError("stop must be at least 1")
        bits = stop.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= stop:
            drawn = self.getrandbits(bits)
        return drawn

    def getrandbits(self, bits: int) -> int:
        """An integer of *bits* random bits."""
        if bits <= 32:
            return self._word() >> (32 - bits) if bits else 0
        low = self._word()
        return low | self.getrandbits(bits - 32) << 32

    def choice(self, items: Sequence[T]) -> T:
        """One of *items*."""
        return items[self.randrange(len(items))]

    def shuffle(self, items: list[Any]) -> None:
        """Shuffle *items* in place."""
        for i in range(len(items) - 1, 0, -1):
            j = self.randrange(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """*count* different elements of *items*, in random order."""
        size = len(items)
        if not 0 <= count <= size:
            raise ValueError(f"cannot take {count} of {size}")
        # Python has two methods, of which it uses the one with less memory; their draws differ.
        few = 21 + (4 ** ceil(log(count * 3, 4)) if count > 5 else 0)
        if size <= few:
            pool = list(items)
            taken = []
            for i in range(count):
                j = self.randrange(size - i)
                taken.append(pool[j])
                pool[j] = pool[size - i - 1]
            return taken
        indices: dict[int, None] = {}
        while len(indices) < count:
            indices[self.randrange(size)] = None
        return [items[index] for index in indices]

    def copy(self) -> Mersenne:
        """An independent copy of the stream."""
        other = Mersenne.__new__(Mersenne)
        # Blocks of words and keys are never changed in place.
        other._key, other._words, other._next = self._key, self._words, self._next
        return other

    def getstate(self) -> tuple[int, ...]:
        """The state: 624 words and a position, as in `random.Random().getstate()[1]`."""
        return (*self._key.tolist(), self._next)

    def as_column(self) -> Words:
        """The state as an array, which is faster to store and restore."""
        return np.append(self._key, np.uint32(self._next))

    @staticmethod
    def fromstate(state: Sequence[int] | Words) -> Mersenne:
        """A stream with the state of `getstate`."""
        stream = Mersenne.__new__(Mersenne)
        stream.setstate(state)
        return stream

    def setstate(self, state: Sequence[int] | Words) -> None:
        """Continue with the state of `getstate`."""
        if len(state) != _SIZE + 1 or not 0 <= state[-1] <= _SIZE:
            raise ValueError(f"a state must have {_SIZE} words and a position")
        self._key = np.array(state[:-1], np.uint32)
        self._words = []
        self._next = int(state[-1])

    def _word(self) -> int:
        if self._next == _SIZE:
            self._key = _next_key(self._key)
            self._words = _temper(self._key)
            self._next = 0
        # Few words are drawn from most restored streams, so they are tempered one by one.
        word = self._words[self._next] if self._words else _temper_one(self._key.item(self._next))
        self._next += 1
        return word


def _key_of_seed(seed: int) -> Words:
    """The first key: MT19937 initialization by the 32-bit words of *seed*, lowest first."""
    words = [seed >> shift & _WORD for shift in range(0, max(seed.bit_length(), 1), 32)]
    key = [19650218]
    for i in range(1, _SIZE):
        key.append((1812433253 * (key[-1] ^ key[-1] >> 30) + i) & _WORD)
    i = 1
    for step in range(max(_SIZE, len(words))):
        j = step % len(words)
        key[i] = ((key[i] ^ (key[i - 1] ^ key[i - 1] >> 30) * 1664525) + words[j] + j) & _WORD
        i += 1
        if i == _SIZE:
            key[0], i = key[-1], 1
    for _ in range(_SIZE - 1):
        key[i] = ((key[i] ^ (key[i - 1] ^ key[i - 1] >> 30) * 1566083941) - i) & _WORD
        i += 1
        if i == _SIZE:
            key[0], i = key[-1], 1
    key[0] = 0x80000000
    return np.array(key, np.uint32)


def _next_key(old: Words) -> Words:
    """The next key. Each word depends on the one 397 positions later, so three vectorized slices suffice."""
    mixed = _mixed(old[:-1], old[1:])
    new = np.empty_like(old)
    reach = _SIZE - _SHIFT
    new[:reach] = old[_SHIFT:] ^ mixed[:reach]
    new[reach : 2 * reach] = new[:reach] ^ mixed[reach : 2 * reach]
    new[2 * reach : -1] = new[reach : _SHIFT - 1] ^ mixed[2 * reach :]
    new[-1:] = new[_SHIFT - 1 : _SHIFT] ^ _mixed(old[-1:], new[:1])
    return new


def _mixed(high: Words, low: Words) -> Words:
    joined = (high & _UPPER) | (low & _LOWER)
    return (joined >> np.uint32(1)) ^ (joined & np.uint32(1)) * _ODD


def _temper(key: Words) -> list[int]:
    """The output words of *key*."""
    words = key ^ key >> np.uint32(11)
    words ^= words << np.uint32(7) & np.uint32(0x9D2C5680)
    words ^= words << np.uint32(15) & np.uint32(0xEFC60000)
    words ^= words >> np.uint32(18)
    drawn: list[int] = words.tolist()
    return drawn


def _temper_one(word: int) -> int:
    """The output word of one word of a key; 100 times faster than a block."""
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18
