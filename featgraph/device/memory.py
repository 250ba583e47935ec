"""Device functions on memory: bits, atomics, checked mode.

`index` is an integer or, for arrays of two or three dimensions, a tuple of integers.
Types are int32, int64, uint32, float32 and float64; values have the array's type.

======================================================  ================================
``set_bit(words, v)``                                   set a bit, atomically
``join_bit(words, v)``                                  the same, if it is not set yet
``set_bits(words, v, flag)``                            set bits of one word, one a lane
``set_bits_from(words, first, flag)``                   the same, consecutive vertices
``put_bits(words, v, flag, others)``                    store one word: bits of lanes
                                                        and bits of `others`
``test_bit(words, v)``                                  bool; False beyond the words
``count_bits(word)``, ``trailing_zeros(word)``          int32 of a uint32
``words_a_turn(words)``                                 int32; number of words that a
                                                        warp reads together
``word_of_lane(words, place, turn)``                    uint32; 0 for lanes >= `turn`
``bits_before(word)``                                   (int32, int32); number of bits
                                                        of lower lanes, of all lanes
``nth_bit(word, before, n)``                            int32; place of the n-th bit of
                                                        all lanes
``vertex_at(first, step, bit)``                         int32; vertex of that bit
``copy_rows(flag, row, target, source)``                copy rows of flagged lanes
``atomic_add(array, index, value)`` ``_min`` ``_max``   the old value
``_or``
``atomic_product(array, index, value)``                 none; compare-and-swap loop
``atomic_combine(array, index, value, combine)``        none; combine(old, value) is a
                                                        device function
``exchange_if(array, index, expected, desired)``        (old, done)
``checked(index, bound, site, vertex, edge, record)``   bool; see the function
======================================================  ================================

Atomics are relaxed: they do not order other memory operations. Sums of floats depend on
the order of the atomics, and may differ from run to run.
"""

from featgraph.cuda.dialect import (
    cuda,
    device_function,
    float32,
    float64,
    int32,
    int64,
    overload,
    uint32,
    uint64,
)


@device_function
def set_bit(words, v):
    """Set bit `v % 32` of word `v // 32`, atomically."""
    bit = uint32(uint32(1) << (uint32(v) & uint32(31)))
    cuda.atomic.or_(words, uint32(v) >> uint32(5), bit)


@device_function
def set_bits(words, v, flag):
    """Set the bits of the vertices of a warp's lanes where `flag` is set.

    The 32 vertices share one word. All lanes of the warp must call this; the first lane
    whose flag is set issues one atomic operation for all. It is not lane 0, since a
    test for lane 0 is loop-invariant: the compiler split the loop around the call in
    two, one of which lane 0 ran alone.
    """
    bits = uint32(cuda.ballot_sync(0xFFFFFFFF, flag))
    if cuda.laneid == trailing_zeros(bits):
        cuda.atomic.or_(words, uint32(v) >> uint32(5), bits)


@device_function
def set_bits_from(words, first, flag):
    """Set the bits of consecutive vertices from `first` on where `flag` is set.

    Lane l has vertex ``first + l``, and all lanes must call this. All vertices whose
    flag is set share one word.
    """
    bits = uint32(cuda.ballot_sync(0xFFFFFFFF, flag))
    if cuda.laneid == trailing_zeros(bits):
        place = uint32(first)
        # Loses no bit: those that are set share the word of `first`.
        bits = uint32(bits << (place & uint32(31)))
        cuda.atomic.or_(words, place >> uint32(5), bits)


@device_function
def put_bits(words, v, flag, others):
    """Store a word: the bits of `others`, and those where `flag` is set.

    Like `set_bits`, but a plain store: no other warp may write the word. If no flag is
    set, the last lane stores it.
    """
    bits = uint32(cuda.ballot_sync(0xFFFFFFFF, flag))
    if cuda.laneid == trailing_zeros(bits | (uint32(1) << uint32(31))):
        word = uint32(v) >> uint32(5)
        words[word] = others[word] | bits


@device_function
def copy_rows(flag, row, target, source):
    """Copy one row of `source` to `target` for each lane whose flag is set.

    Both arrays have shape (N, K). All lanes of the warp must call this: consecutive
    lanes copy consecutive entries of the rows.
    """
    width = uint32(source.shape[1])
    bits = uint32(cuda.ballot_sync(0xFFFFFFFF, flag))
    owner, f = uint32(cuda.laneid) // width, uint32(cuda.laneid) % width
    if bits != 0:  # the whole warp
        # 32 rows have 32 * width entries: width rounds of all lanes.
        for _ in range(width):
            own = cuda.shfl_sync(0xFFFFFFFF, row, int32(owner))
            if (bits >> owner) & uint32(1) != 0:
                target[uint64(own), f] = source[uint64(own), f]
            owner = uint32(owner + uint32(32) // width)
            f = uint32(f + uint32(32) % width)
            if f >= width:
                owner, f = uint32(owner + uint32(1)), uint32(f - width)


@device_function
def words_a_turn(words):
    """Return the number of words of a set that a warp of the grid reads together.

    1 if there is a warp for each word; otherwise so many that all words are read in one
    round of all warps, up to 32. Most words of a small set are zero, so that loading
    them is most of the work.
    """
    warps = cuda.gridsize(1) >> 5
    return int32(max(1, min(32, (words.size + warps - 1) // warps)))


@device_function
def word_of_lane(words, place, turn):
    """Return a lane's word; 0 for lanes from `turn` on, and beyond the words."""
    if cuda.laneid < turn and uint32(place) < uint32(words.size):
        return words[uint32(place)]
    return uint32(0)


@device_function
def bits_before(word):
    """Return the number of bits in the words of lower lanes, and of all lanes.

    All lanes of the warp must call this.
    """
    lane, own = int32(cuda.laneid), count_bits(word)
    total, offset = own, int32(1)
    while offset < 32:
        lower = cuda.shfl_up_sync(0xFFFFFFFF, total, offset)
        if lane >= offset:
            total = int32(total + lower)
        offset += offset
    return int32(total - own), cuda.shfl_sync(0xFFFFFFFF, total, int32(31))


@device_function
def nth_bit(word, before, n):
    """Return the place of the n-th set bit, from 0 on, in the words of all lanes.

    `before` comes from `bits_before`; with n or fewer bits the result is undefined. All
    lanes of the warp must call this; n may differ.
    """
    owner, step = int32(0), int32(16)
    while step > 0:  # the last lane with no more than n bits before its own
        if cuda.shfl_sync(0xFFFFFFFF, before, int32(owner + step)) <= n:
            owner = int32(owner + step)
        step >>= 1
    rest = int32(n - cuda.shfl_sync(0xFFFFFFFF, before, owner))
    bits = uint32(cuda.shfl_sync(0xFFFFFFFF, int32(word), owner))
    place, width = int32(owner * 32), uint32(16)
    while width > 0:  # in the lower or the upper half of the bits
        lower = count_bits(bits & ((uint32(1) << width) - uint32(1)))
        if rest >= lower:
            rest = int32(rest - lower)
            place = int32(place + int32(width))
            bits >>= width
        width >>= uint32(1)
    return place


@device_function
def vertex_at(first, step, bit):
    """Return the vertex of a bit of `nth_bit`; lane l has word ``first + l * step``."""
    place = uint32(first) + (uint32(bit) >> uint32(5)) * uint32(step)
    return int32((place << uint32(5)) + (uint32(bit) & uint32(31)))


@device_function
def test_bit(words, v):
    """Return whether a bit is set; bits beyond the words are not."""
    word = uint32(uint32(v) >> uint32(5))
    if word >= uint32(words.shape[0]):
        return False
    return uint32((words[word] >> (uint32(v) & uint32(31))) & uint32(1)) != 0


@device_function
def join_bit(words, v):
    """Set a bit as `set_bit` does, if it is not set yet."""
    if not test_bit(words, v):
        set_bit(words, v)


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
    """Add to an entry; return its previous value."""
    return cuda.atomic.add(array, index, value)


@device_function
def atomic_min(array, index, value):
    """Lower an entry to the value; return the previous one. NaN has no effect."""
    return cuda.atomic.min(array, index, value)


@device_function
def atomic_max(array, index, value):
    """Raise an entry to the value; return the previous one. NaN has no effect."""
    return cuda.atomic.max(array, index, value)


@device_function
def atomic_or(array, index, value):
    """Set the bits of an integer entry; return its previous value."""
    return cuda.atomic.or_(array, index, value)


def exchange_if(array, index, expected, desired):
    """Replace an entry if it holds exactly the bits of `expected`.

    Returns the previous value, and whether it was replaced. Compares bits, so that NaN
    equals itself and a retry loop ends.
    """
    # Kernels use an overload below; the emulator, whose cas takes floats, runs this.
    old = cuda.atomic.cas(array, index, expected, desired)
    return old, old == expected or (old != old and expected != expected)


@overload(exchange_if)
def _choose_exchange(array, index, expected, desired):
    """Choose the implementation: compare-and-swap takes integers only."""
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
    old = array[index]  # may be stale: the exchange then returns the current value
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
    """Return whether ``0 <= index < bound``; record the first violation.

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
