"""What decides on a GPU whether a cycle of supersteps is run again."""

from numba import int64, uint32, uint64

from featgraph._cuda import clock_ns, cuda, kernel, set_condition
from featgraph.runtime.recording.control import (
    BEGUN,
    DONE,
    ENDS,
    EVERYTHING,
    HEADER,
    LARGEST,
    LAST,
    LATE,
    LEAST,
    LIMIT,
    MOST,
    MOST_LATE,
    NODE,
    OF_A_STEP,
    OF_AN_ENTRY,
    TURN,
    VERTICES,
)

__all__ = ["control"]


@kernel(cache=True)
def control(total, stop, words, turns, length, place, is_last):  # type: ignore[no-untyped-def]
    """Note a superstep that has committed ``total[0]`` vertices; one thread.

    It stands at `place` in its cycle of some `length`. Behind the last one of a node,
    tell the node whether it runs again.
    """
    if cuda.grid(1) != 0:
        return
    # All that is read at once, for each read takes half a microsecond.
    first = uint32(HEADER + turns)
    entry = uint32(first + OF_A_STEP * length)
    own = uint32(first + OF_A_STEP * place)
    following = uint32(first if place + 1 == length else own + OF_A_STEP)
    number, now = total[0], clock_ns()
    done, limit, ended = words[DONE], words[LIMIT], words[ENDS]
    begun, last, late = words[BEGUN], words[LAST], words[LATE]
    most_late, most, vertices = words[MOST_LATE], words[MOST], words[VERTICES]
    node, turn, next_turn = words[NODE], words[own + TURN], words[following + TURN]
    least, largest = words[following + LEAST], words[following + LARGEST]
    # Asked beside the next superstep: the answer comes from memory of the host.
    stopped = int64(0) if is_last else int64(cuda.ldcv(stop, 0))
    if done == 0:
        words[BEGUN] = begun = last = now
    count = int64(0)
    for other in range(turns):
        pending = words[uint32(HEADER + other)]
        if number == vertices:
            pending = int64(EVERYTHING)
        elif other == turn:
            pending = number
        elif pending != EVERYTHING:
            pending += number
        words[uint32(HEADER + other)] = pending
        if other == next_turn:
            count = pending
    late = int64(0) if least <= count <= largest else late + now - last
    ends = ended != 0 or count == 0 or late > most_late or stopped != 0
    ends = ends or done + 1 >= limit or now - begun > most
    entry += uint32(OF_AN_ENTRY * done)
    words[entry], words[entry + uint32(1)] = number, now - last
    words[DONE], words[LAST], words[LATE] = done + 1, now, late
    words[ENDS] = 1 if ends else 0
    if is_last and node != 0:
        set_condition(uint64(node), uint32(0 if ends else 1))
