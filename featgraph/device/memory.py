"""Device functions on memory: bits, atomics, checked mode.

`index` is an integer or, for arrays of two or three dimensions, a tuple of integers.
Types are int32, int64, uint32, float32 and float64; give values in the array's type.

======================================================  ================================
``set_bit(words, v)``                                   atomically
``set_bits(words, first, flag)``                        of 32 vertices, one a lane
``test_bit(words, v)``                                  bool; False beyond the words
``count_bits(word)``, ``trailing_zeros(word)``          int32 of a uint32
``words_a_turn(words)``                                 int32; a warp looks at so many
``word_of_lane(words, first, turn)``                    uint32; 0 beyond the turn
``next_word(words, base, stride)``                      int32; where one is not 0
``atomic_add(array, index, value)`` ``_min`` ``_max``   the old value
``_or``
``atomic_product(array, index, value)``                 none; compare-and-swap loop
``atomic_combine(array, index, value, combine)``        none; combine(old, value) is a
                                                        device function
``exchange_if(array, index, expected, desired)``        (old, done)
``checked(index, bound, site, vertex, edge, record)``   bool; see the function
======================================================  ================================

Atomics are relaxed: they order nothing else. Adding floats in any order rounds
differently from run to run.
"""

from numba import float32, float64, int32, int64, uint32

from featgraph._cuda import cuda, device_function, overload


@device_function
def set_bit(words, v):
    """Set bit `v % 32` of word `v // 32`, atomically."""
    bit = uint32(uint32(1) << (uint32(v) & uint32(31)))
    cuda.atomic.or_(words, uint32(v) >> uint32(5), bit)


@device_function
def set_bits(words, first, flag):
    """Set the bits of 32 vertices, lane l that of ``first + l``, where `flag` is set.

    `first` is a multiple of 32. One atomic operation for all lanes of the warp, which
    must all call this: by the first lane whose flag is set. By lane 0, of which a loop
    around the call knows from the start whether it is this one, the compiler made two
    loops of that, and lane 0 went through its own alone.
    """
    bits = uint32(cuda.ballot_sync(0xFFFFFFFF, flag))
    if cuda.laneid == trailing_zeros(bits):
        cuda.atomic.or_(words, uint32(first) >> uint32(5), bits)


@device_function
def words_a_turn(words):
    """Return how many words of a set each warp of the grid looks at together.

    One where there is a warp for each, else so many that all warps get a share, up to
    32: few of the words of a small set have bits, and loading them is most of the work.
    """
    warps = cuda.gridsize(1) >> 5
    return int32(max(1, min(32, (words.size + warps - 1) // warps)))


@device_function
def word_of_lane(words, first, turn):
    """Return the word of this lane, of `turn` from `first` on; 0 for lanes beyond."""
    place = uint32(first) + uint32(cuda.laneid)
    if cuda.laneid < turn and place < uint32(words.size):
        return words[place]
    return uint32(0)


@device_function
def next_word(words, base, stride):
    """Return the first vertex of the next word that is not zero, for a whole warp.

    The words are those of vertex `base`, ``base + stride`` and so on, multiples of 32.
    Behind the last one it is the largest int32, which is no vertex.
    """
    place, step = uint32(base) >> uint32(5), uint32(stride) >> uint32(5)
    if place < uint32(words.size) and words[place] != uint32(0):
        return int32(base)
    while place < uint32(words.size):  # 32 words at a time
        mine = place + uint32(cuda.laneid) * step
        is_set = mine < uint32(words.size) and words[mine] != uint32(0)
        found = uint32(cuda.ballot_sync(0xFFFFFFFF, is_set))
        if found != uint32(0):
            return int32((place + uint32(trailing_zeros(found)) * step) << uint32(5))
        place += uint32(32) * step
    return int32(0x7FFFFFFF)


@device_function
def test_bit(words, v):
    """Tell whether a bit is set; bits beyond the words are not."""
    word = uint32(uint32(v) >> uint32(5))
    if word >= uint32(words.shape[0]):
        return False
    return uint32((words[word] >> (uint32(v) & uint32(31))) & uint32(1)) != 0


@device_function
def count_bits(word):
    """Count the set bits of a uint32."""
    return int32(cuda.popc(uint32(word)))


@device_function
def trailing_zeros(word):
    """Return the index of the lowest set bit of a uint32, or 32."""
    lowest = int32(cuda.ffs(uint32(word)))
    return int32(32) if lowest == 0 else lowest - int32(1)


@device_function
def atomic_add(array, index, value):
    """Add to an entry; return what was there."""
    return cuda.atomic.add(array, index, value)


@device_function
def atomic_min(array, index, value):
    """Lower an entry to the value; return what was there. NaN changes nothing."""
    return cuda.atomic.min(array, index, value)


@device_function
def atomic_max(array, index, value):
    """Raise an entry to the value; return what was there. NaN changes nothing."""
    return cuda.atomic.max(array, index, value)


@device_function
def atomic_or(array, index, value):
    """Set the bits of an integer entry; return what was there."""
    return cuda.atomic.or_(array, index, value)


def exchange_if(array, index, expected, desired):
    """Replace an entry if it holds exactly the bits of `expected`.

    Returns what was there and whether it was replaced. Compares bits, so that NaN
    equals itself and a retry loop ends.
    """
    # Kernels get one of the two below; the emulator, whose cas takes floats, runs this.
    old = cuda.atomic.cas(array, index, expected, desired)
    return old, old == expected or (old != old and expected != expected)


@overload(exchange_if)
def _choose_exchange(array, index, expected, desired):
    dtype = array.dtype

    def exchange_integers(array, index, expected, desired):
        old = cuda.atomic.cas(array, index, dtype(expected), dtype(desired))
        return old, old == expected

    if dtype not in (float32, float64):
        return exchange_integers
    bits = int32 if dtype == float32 else int64

    def exchange_floats(array, index, expected, desired):
        wanted = dtype(expected).view(bits)
        new = dtype(desired).view(bits)
        old = cuda.atomic.cas(array.view(bits), index, wanted, new)
        return old.view(dtype), old == wanted

    return exchange_floats


@device_function
def atomic_product(array, index, value):
    """Multiply an entry by the value."""
    done = False
    old = array[index]
    while not done:
        old, done = exchange_if(array, index, old, old * value)


@device_function
def atomic_combine(array, index, value, combine):
    """Replace an entry by ``combine(entry, value)``."""
    done = False
    old = array[index]
    while not done:
        old, done = exchange_if(array, index, old, combine(old, value))


@device_function
def checked(index, bound, site, vertex, edge, record):
    """Tell whether ``0 <= index < bound``; record the first violation.

    `record` is int64[6], zero before: taken, site, vertex, edge, index, bound. It is
    complete when the kernel has ended.
    """
    if 0 <= int64(index) < int64(bound):
        return True
    if cuda.atomic.cas(record, 0, int64(0), int64(1)) == 0:
        record[1] = site
        record[2] = vertex
        record[3] = edge
        record[4] = index
        record[5] = bound
    return False
