"""Device functions that copy rows of vertices into and out of windows' slots (CUDA).

`columns` has a row for each property; `notes` are values that the host reads, of which
`FAULT` is set here. `slot` is the address of the row of a word's first position.
"""

from featgraph.cuda.dialect import (
    cuda,
    device_function,
    int32,
    int64,
    load_at,
    store_at,
    uint8,
    uint16,
    uint32,
    uint64,
)
from featgraph.device import warp

__all__ = ["FAULT", "OPERATIONS", "combine_entry", "copy_all", "copy_unit"]

#: The entry of `notes` that is 1 + the row number of a vertex with a value too large
#: for the wire dtype, or 0.
FAULT = 0
#: The columns of `columns`, which has a row for each property: address of its rows,
#: bytes from one row to the next, bytes of a row in a slot, bytes copied at a time,
#: bytes of a row of all properties before it, its part, fraction bits of the wire dtype
#: (0: not rounded), and address of the second buffer for received rows (0: none).
_ADDRESS, _STRIDE, _ROW, _UNIT, _BEFORE, _PART, _WIRE, _OTHER = 0, 1, 2, 3, 4, 5, 6, 7

#: Atomic operations; kernels take them by index.
OPERATIONS = ("add", "min", "max")


@device_function
def combine_entry(target, v, f, value, operation):  # type: ignore[no-untyped-def]
    """Combine a value into an entry: add (0), min (1) or max (2), which skip NaN."""
    known = target[v, f]
    if operation == 0:
        target[v, f] = known + value
    elif operation == 1:
        if value < known or known != known:
            target[v, f] = value
    elif value > known or known != known:
        target[v, f] = value


@device_function
def copy_unit(source, target, unit):  # type: ignore[no-untyped-def]
    """Copy `unit` bytes (1, 2, 4 or 8) from one address to another."""
    if unit == 8:
        store_at(target, load_at(source, uint64), uint64)
    elif unit == 4:
        store_at(target, load_at(source, uint32), uint32)
    elif unit == 2:
        store_at(target, load_at(source, uint16), uint16)
    else:
        store_at(target, load_at(source, uint8), uint8)


@device_function
def _copy_twice(source, target, other, unit):  # type: ignore[no-untyped-def]
    """Copy `unit` bytes (1, 2, 4 or 8) from one address to two others."""
    if unit == 8:
        wide = load_at(source, uint64)
        store_at(target, wide, uint64)
        store_at(other, wide, uint64)
    elif unit == 4:
        value = load_at(source, uint32)
        store_at(target, value, uint32)
        store_at(other, value, uint32)
    else:
        copy_unit(source, target, unit)
        copy_unit(source, other, unit)


@device_function
def _round(source, target, unit, wire):  # type: ignore[no-untyped-def]
    """Round a real of `unit` bytes to 16 bits, to nearest, ties to even, and store it.

    Integer arithmetic as in `row_loops`. Returns whether the real is finite but too
    large.
    """
    bits, from_fraction, from_exponent = int64(0), int64(23), int64(8)
    if unit == 8:
        bits, from_fraction = int64(load_at(source, int64)), int64(52)
        from_exponent = int64(11)
    else:
        bits = int64(load_at(source, uint32))
    to_exponent = int64(15) - wire
    sign = (bits >> (from_fraction + from_exponent)) & int64(1)
    exponent = (bits >> from_fraction) & ((int64(1) << from_exponent) - int64(1))
    fraction = bits & ((int64(1) << from_fraction) - int64(1))
    sign <<= int64(15)
    infinite = ((int64(1) << to_exponent) - int64(1)) << wire
    shift, narrow = from_fraction - wire, sign
    is_finite = exponent != (int64(1) << from_exponent) - int64(1)
    if is_finite:
        if exponent == 0:  # a subnormal number, or zero
            exponent = int64(1)
        else:
            fraction |= int64(1) << from_fraction
        exponent += (int64(1) << (to_exponent - int64(1))) - (
            int64(1) << (from_exponent - int64(1))
        )
        if exponent < 1:  # subnormal in the wire dtype
            shift += int64(1) - exponent
            exponent = int64(1)
        if shift <= from_fraction + int64(2):
            whole, rest = fraction >> shift, fraction & ((int64(1) << shift) - int64(1))
            half = int64(1) << (shift - int64(1))
            if rest > half or (rest == half and whole & int64(1) == 1):
                whole += int64(1)
            # The first bit of a normal fraction is one more of the exponent.
            whole += (exponent - int64(1)) << wire
            narrow = sign | min(whole, infinite)
    else:
        narrow = sign | infinite | (fraction >> shift)
        if fraction != 0:
            narrow |= int64(1) << (wire - int64(1))
    store_at(target, uint16(narrow), uint16)
    return is_finite and narrow & int64(0x7FFF) == infinite


@device_function
def _widen(source, target, unit, wire):  # type: ignore[no-untyped-def]
    """Store a real of 16 bits as one of `unit` bytes, exactly."""
    bits, fraction_bits, exponent_bits = (
        int64(load_at(source, uint16)),
        int64(23),
        int64(8),
    )
    if unit == 8:
        fraction_bits, exponent_bits = int64(52), int64(11)
    own_exponent = int64(15) - wire
    sign, fraction = bits >> int64(15), bits & ((int64(1) << wire) - int64(1))
    exponent = (bits >> wire) & ((int64(1) << own_exponent) - int64(1))
    if exponent == (int64(1) << own_exponent) - int64(1):
        exponent = (int64(1) << exponent_bits) - int64(1)
    elif own_exponent != exponent_bits and (exponent != 0 or fraction != 0):
        if exponent == 0:  # subnormal in 16 bits, but normal in the wider dtype
            exponent = int64(1)
            while fraction >> wire == 0:
                fraction <<= int64(1)
                exponent -= int64(1)
            fraction &= (int64(1) << wire) - int64(1)
        exponent += (int64(1) << (exponent_bits - int64(1))) - (
            int64(1) << (own_exponent - int64(1))
        )
    wide = (exponent << fraction_bits) | (fraction << (fraction_bits - wire))
    signs = uint64(sign) << uint64(fraction_bits + exponent_bits)
    if unit == 8:
        store_at(target, uint64(wide) | signs, uint64)
    else:
        store_at(target, uint32(uint64(wide) | signs), uint32)


@device_function
def _copy_entry(v, into_slot, entry, f, address, columns, column, slot, notes):  # type: ignore[no-untyped-def]
    """Copy an entry of a vertex's row into a slot, or out of a slot."""
    unit, wire = int32(columns[column, _UNIT]), columns[column, _WIRE]
    size = int32(2) if wire else unit
    from_row = v * columns[column, _STRIDE] + int64(f) * unit
    at, inside = address + from_row, slot + int64(entry) * size
    if into_slot:
        if not wire:
            copy_unit(at, inside, unit)
        elif _round(at, inside, unit, wire):
            notes[FAULT] = int64(1) + v
        return
    other = columns[column, _OTHER]
    if wire:
        _widen(inside, at, unit, wire)
        if other != 0:
            _widen(inside, other + from_row, unit, wire)
    elif other != 0:
        _copy_twice(inside, at, other + from_row, unit)
    else:
        copy_unit(inside, at, unit)


@device_function
def _copy_rows(found, number, columns, column, slot, into_slot, notes):  # type: ignore[no-untyped-def]
    """Copy the rows of a word's positions into a slot, or out of it, by a whole warp.

    `number` is the vertex at a lane's position, and `slot` the address of the row of
    the first position. Consecutive lanes copy consecutive entries.
    """
    address, lane = columns[column, _ADDRESS], int32(cuda.laneid)
    size = int32(2) if columns[column, _WIRE] else int32(columns[column, _UNIT])
    width = int32(columns[column, _ROW]) // size
    if width == 1:  # each lane copies one row
        if (found >> uint32(lane)) & uint32(1):
            v = int64(number)
            _copy_entry(
                v, into_slot, lane, int32(0), address, columns, column, slot, notes
            )
        return
    if not columns[column, _WIRE] and size >= 4:
        stride, other = columns[column, _STRIDE], columns[column, _OTHER]
        lent = found, number, width, address, stride, other, slot, into_slot
        if size == 8:
            _copy_whole(lent, uint64, int32(8))
        else:
            _copy_whole(lent, uint32, int32(4))
        return
    row, rows = lane // width, int32(32) // width
    f, features = lane - row * width, int32(32) - rows * width
    for turn in range(width):
        v = int64(warp.broadcast(number, row, 32))
        if (found >> uint32(row)) & uint32(1):
            entry = int32(turn * 32 + lane)
            _copy_entry(v, into_slot, entry, f, address, columns, column, slot, notes)
        row, f = _moved(row, f, rows, features, width)


@device_function
def _moved(row, f, rows, features, width):  # type: ignore[no-untyped-def]
    """Return row and index of the entry that is `rows` rows and `features` later."""
    row, f = int32(row + rows), int32(f + features)
    if f >= width:
        row, f = int32(row + 1), int32(f - width)
    return row, f


@device_function
def _place_of(found, number, row, f, stride, unit):  # type: ignore[no-untyped-def]
    """Return whether an entry is copied, and its byte offset from the first row."""
    lane = row & int32(31)
    v = int64(warp.broadcast(number, lane, 32))
    is_copied = row < 32 and (found >> uint32(lane)) & uint32(1) != 0
    return is_copied, v * stride + int64(f) * unit


@device_function
def _copy_whole(lent, kind, unit):  # type: ignore[no-untyped-def]
    """Copy rows of unrounded entries of one type, four entries of a lane at a time.

    The four loads are issued before any store, which hides their latency.
    """
    found, number, width, address, stride, other, slot, into_slot = lent
    lane = int32(cuda.laneid)
    row, rows = lane // width, int32(32) // width
    f, features = lane - row * width, int32(32) - rows * width
    for turn in range(0, width, 4):
        is_a, a = _place_of(found, number, row, f, stride, unit)
        row, f = _moved(row, f, rows, features, width)
        is_b, b = _place_of(found, number, row, f, stride, unit)
        row, f = _moved(row, f, rows, features, width)
        is_c, c = _place_of(found, number, row, f, stride, unit)
        row, f = _moved(row, f, rows, features, width)
        is_d, d = _place_of(found, number, row, f, stride, unit)
        row, f = _moved(row, f, rows, features, width)
        inside, step = slot + int64(turn * 32 + lane) * unit, int64(32 * unit)
        if into_slot:
            value_a = _loaded(is_a, address + a, kind)
            value_b = _loaded(is_b, address + b, kind)
            value_c = _loaded(is_c, address + c, kind)
            value_d = _loaded(is_d, address + d, kind)
            _stored(is_a, inside, int64(0), value_a, kind)
            _stored(is_b, inside + step, int64(0), value_b, kind)
            _stored(is_c, inside + 2 * step, int64(0), value_c, kind)
            _stored(is_d, inside + 3 * step, int64(0), value_d, kind)
        else:
            value_a = _loaded(is_a, inside, kind)
            value_b = _loaded(is_b, inside + step, kind)
            value_c = _loaded(is_c, inside + 2 * step, kind)
            value_d = _loaded(is_d, inside + 3 * step, kind)
            beside = other - address if other != 0 else int64(0)
            _stored(is_a, address + a, beside, value_a, kind)
            _stored(is_b, address + b, beside, value_b, kind)
            _stored(is_c, address + c, beside, value_c, kind)
            _stored(is_d, address + d, beside, value_d, kind)


@device_function
def _loaded(is_copied, address, kind):  # type: ignore[no-untyped-def]
    """Return the value at an address if it is copied, else 0."""
    return load_at(address, kind) if is_copied else kind(0)


@device_function
def _stored(is_copied, address, beside, value, kind):  # type: ignore[no-untyped-def]
    """Store a copied value, and again `beside` bytes further unless that is 0."""
    if is_copied:
        store_at(address, value, kind)
        if beside != 0:
            store_at(address + beside, value, kind)


@device_function
def copy_all(  # type: ignore[no-untyped-def]
    found, part, number, columns, count, rows, words, place, into_slot, notes
):
    """Copy the rows of a word's positions, for all properties of a part.

    Returns the bytes of one row of all these properties.
    """
    size = int32(0)
    for column in range(count):
        if columns[column, _PART] == part:
            before = words * 32 * columns[column, _BEFORE]
            slot = rows + before + place * 32 * columns[column, _ROW]
            _copy_rows(found, number, columns, column, slot, into_slot, notes)
            size += int32(columns[column, _ROW])
    return size
