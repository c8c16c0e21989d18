"""Python's `random.Random`, bit for bit, as a value that can be copied and written down.

Gavel draws its jobs, its shuffles and its pairs from `random.Random`. Whoever wants its numbers has to draw the same
bits in the same order; the core may not import `random`, and its state is nothing a snapshot could hold. Words come
from MT19937 in blocks of 624, each computed at once.
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
    """A stream of random numbers: the same seed gives what `random.Random(seed)` gives, draw by draw."""

    __slots__ = ("_key", "_next", "_words")

    def __init__(self, seed: int) -> None:
        """*seed* is any whole number; as in Python, its sign does not count."""
        self._key = _seeded(abs(seed))
        self._words: list[int] = []
        self._next = _SIZE

    def random(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return ((self._word() >> 5) * 67108864.0 + (self._word() >> 6)) / 9007199254740992.0

    def uniform(self, low: float, high: float) -> float:
        """A number between *low* and *high*."""
        return low + (high - low) * self.random()

    def randrange(self, stop: int) -> int:
        """A whole number from 0 to *stop* - 1."""
        if stop < 1:
            raise ValueError("there is no whole number from 0 to below that")
        bits = stop.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= stop:
            drawn = self.getrandbits(bits)
        return drawn

    def getrandbits(self, bits: int) -> int:
        """A whole number of that many random bits."""
        if bits <= 32:
            return self._word() >> (32 - bits) if bits else 0
        low = self._word()
        return low | self.getrandbits(bits - 32) << 32

    def choice(self, items: Sequence[T]) -> T:
        """One of *items*."""
        return items[self.randrange(len(items))]

    def shuffle(self, items: list[Any]) -> None:
        """Puts *items* in a random order, in place."""
        for i in range(len(items) - 1, 0, -1):
            j = self.randrange(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """So many different places of *items*, in random order."""
        size = len(items)
        if not 0 <= count <= size:
            raise ValueError(f"cannot take {count} of {size}")
        # Python draws in one of two ways, whichever it thinks needs less memory; the draws differ.
        few = 21 + (4 ** ceil(log(count * 3, 4)) if count > 5 else 0)
        if size <= few:
            pool = list(items)
            taken = []
            for i in range(count):
                j = self.randrange(size - i)
                taken.append(pool[j])
                pool[j] = pool[size - i - 1]
            return taken
        places: dict[int, None] = {}
        while len(places) < count:
            places[self.randrange(size)] = None
        return [items[place] for place in places]

    def copy(self) -> Mersenne:
        """A stream that goes on as this one does, and by itself."""
        other = Mersenne.__new__(Mersenne)
        # Neither a block of words nor a key is changed once it is made.
        other._key, other._words, other._next = self._key, self._words, self._next
        return other

    def getstate(self) -> tuple[int, ...]:
        """Where the stream stands: 624 words and a position, as in `random.Random().getstate()[1]`."""
        return (*self._key.tolist(), self._next)

    def as_column(self) -> Words:
        """The same as a column, for who keeps and restores a stream often."""
        return np.append(self._key, np.uint32(self._next))

    @staticmethod
    def fromstate(state: Sequence[int] | Words) -> Mersenne:
        """A stream that goes on from where `getstate` was taken."""
        made = Mersenne.__new__(Mersenne)
        made.setstate(state)
        return made

    def setstate(self, state: Sequence[int] | Words) -> None:
        """Goes on from where `getstate` was taken."""
        if len(state) != _SIZE + 1 or not 0 <= state[-1] <= _SIZE:
            raise ValueError(f"a state is {_SIZE} words and a position")
        self._key = np.array(state[:-1], np.uint32)
        self._words = []
        self._next = int(state[-1])

    def _word(self) -> int:
        if self._next == _SIZE:
            self._key = _turned(self._key)
            self._words = _tempered(self._key)
            self._next = 0
        # A restored stream is mostly asked for few words: all others of its block need no tempering.
        word = self._words[self._next] if self._words else _tempered_one(self._key.item(self._next))
        self._next += 1
        return word


def _seeded(seed: int) -> Words:
    """The first key: MT19937's initialisation by the 32-bit words of *seed*, lowest first."""
    given = [seed >> shift & _WORD for shift in range(0, max(seed.bit_length(), 1), 32)]
    key = [19650218]
    for i in range(1, _SIZE):
        key.append((1812433253 * (key[-1] ^ key[-1] >> 30) + i) & _WORD)
    i = 1
    for turn in range(max(_SIZE, len(given))):
        j = turn % len(given)
        key[i] = ((key[i] ^ (key[i - 1] ^ key[i - 1] >> 30) * 1664525) + given[j] + j) & _WORD
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


def _turned(old: Words) -> Words:
    """The next key. Each word needs one that stands 397 places further on, so that three stretches do."""
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


def _tempered(key: Words) -> list[int]:
    """The words that are drawn from *key*."""
    words = key ^ key >> np.uint32(11)
    words ^= words << np.uint32(7) & np.uint32(0x9D2C5680)
    words ^= words << np.uint32(15) & np.uint32(0xEFC60000)
    words ^= words >> np.uint32(18)
    drawn: list[int] = words.tolist()
    return drawn


def _tempered_one(word: int) -> int:
    """The same for one word; a hundred times as fast as for all."""
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return word ^ word >> 18
