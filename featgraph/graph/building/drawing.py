"""Generated edges as functions of a seed and an index; one text for both targets.

`make` builds the functions for a target. Only integers are computed with, so that all
targets draw the same edges:

======================================================  ================================
``philox(counter, key)``                                four words of 32 bits
``rmat_edge(number, seed, scale, limits)``              the ends of an edge of an R-MAT
                                                        graph; `limits` are the three
                                                        sums of probabilities, in 2**-32
``uniform_edge(number, seed, count)``                   two of `count` vertices
``grid_edge(number, height, width)``                    the ends of an edge of a lattice
``rating_edge(number, seed, users, items)``              a user, and an item behind all
                                                        users: the k-th item of n has a
                                                        frequency of sqrt(n / k)
``weight(number, seed)``                                a multiple of 2**-24 in (0, 1]
``star(number, seed)``                                  an integer from 1 to 5
======================================================  ================================

Random words are those of Philox4x32-10, which passes TestU01's BigCrush; seed and
number are its key and counter. The purpose is part of the counter, too, so that
different graphs of one seed are independent.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011. D. Lemire, "Fast random integer generation in an interval", ACM
TOMACS 29, 2019.
"""

import numpy as np

__all__ = ["make"]

_HALF, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
#: Multipliers and key increments of Philox4x32.
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
#: Purposes of random words.
_ZERO, _RMAT, _UNIFORM = np.uint64(0), np.uint64(1), np.uint64(2)
_WEIGHT, _RATING, _STAR, _BYTE = np.uint64(3), np.uint64(4), np.uint64(5), np.uint64(8)
_STARS = np.uint64(5)


def make(jit):  # type: ignore[no-untyped-def]
    """Compile the functions for a target.

    Parameters
    ----------
    jit : callable
        Decorator of the target's device functions.

    Returns
    -------
    tuple of callable
        The functions of the module's table, in its order. They take uint64, and return
        it but for weights.
    """

    @jit
    def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
        for _ in range(_ROUNDS):
            low, high = _M0 * c0, _M1 * c2
            c0, c1 = (high >> _HALF) ^ c1 ^ k0, high & _MASK
            c2, c3 = (low >> _HALF) ^ c3 ^ k1, low & _MASK
            k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
        return c0, c1, c2, c3

    @jit
    def words(number, seed, block, purpose):  # type: ignore[no-untyped-def]
        return philox(
            number & _MASK, number >> _HALF, block, purpose,
            seed & _MASK, seed >> _HALF,
        )  # fmt: skip

    @jit
    def rmat_edge(number, seed, scale, a, ab, abc):  # type: ignore[no-untyped-def]
        # Each level uses one random word; a block of Philox has four.
        u = v = _ZERO
        w0 = w1 = w2 = w3 = _ZERO
        for level in range(scale):
            if level % 4 == 0:
                w0, w1, w2, w3 = words(number, seed, np.uint64(level // 4), _RMAT)
            is_lower = w0 >= ab
            is_right = w0 >= abc or (w0 >= a and not is_lower)
            u = u + u + np.uint64(is_lower)
            v = v + v + np.uint64(is_right)
            w0, w1, w2 = w1, w2, w3
        return u, v

    @jit
    def below(high, low, count):  # type: ignore[no-untyped-def]
        # (2**32 high + low) * count / 2**64, since count < 2**32.
        return (high * count + (low * count >> _HALF)) >> _HALF

    @jit
    def uniform_edge(number, seed, count):  # type: ignore[no-untyped-def]
        w0, w1, w2, w3 = words(number, seed, _ZERO, _UNIFORM)
        return below(w0, w1, count), below(w2, w3, count)

    @jit
    def grid_edge(number, height, width):  # type: ignore[no-untyped-def]
        along = height * (width - 1)
        if number < along:
            u = number + number // (width - 1)
            return u, u + 1
        u = number - along
        return u, u + width

    @jit
    def rating_edge(number, seed, users, items):  # type: ignore[no-untyped-def]
        w0, w1, w2, _ = words(number, seed, _ZERO, _RATING)
        # The square of a uniform x in [0, 1) has the density 1 / (2 sqrt(x)).
        square = w2 * w2 >> _HALF
        return below(w0, w1, users), users + (square * items >> _HALF)

    @jit
    def star(number, seed):  # type: ignore[no-untyped-def]
        w0, w1, _, _ = words(number, seed, _ZERO, _STAR)
        return np.float32(np.int32(below(w0, w1, _STARS)) + np.int32(1))

    @jit
    def weight(number, seed):  # type: ignore[no-untyped-def]
        w0, _, _, _ = words(number, seed, _ZERO, _WEIGHT)
        # Exact in float32: an integer of at most 2**24, times a power of two.
        return np.float32(np.int32(w0 >> _BYTE) + np.int32(1)) * np.float32(2.0**-24)

    return philox, rmat_edge, uniform_edge, grid_edge, rating_edge, weight, star
