"""What decides on a GPU whether a cycle of supersteps is run again."""

from featgraph._cuda import (
    clock_ns,
    cuda,
    device_function,
    int64,
    kernel,
    set_condition,
    uint32,
    uint64,
)
from featgraph.runtime.recording.control import (
    BEGUN,
    BELOW,
    BOUND,
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
    SIDE,
    TESTED,
    TURN,
    VERTICES,
)

__all__ = ["control"]


@device_function
def is_met(side, value, bound):  # type: ignore[no-untyped-def]
    """Whether a value is on a side of a bound; NaN is on none."""
    return value < bound if side == BELOW else value > bound


@device_function
def announce(words, at, turn, next_turn, number):  # type: ignore[no-untyped-def]
    """Note what is pending for each foldmap; return how much for the next one."""
    vertices, count = words[VERTICES], int64(0)
    for other in range(at.turns):
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
    return count


@device_function
def close_gates(words, at, gates):  # type: ignore[no-untyped-def]
    """Have none of the supersteps run that follow in this round."""
    for other in range(at.number + 1, at.gates):
        set_condition(uint64(words[uint32(gates + other)]), uint32(0))


@kernel(cache=True)
def control(at, total, extremes, stop, words, reals):  # type: ignore[no-untyped-def]
    """Note a superstep that has committed ``total[0]`` vertices; one thread.

    A number less than 0 says that another rank is lost, which ends the loop.
    Behind the last one of a node, tell the node whether it runs again; where supersteps
    have gates, behind any.
    """
    if cuda.grid(1) != 0:
        return
    # All that is read at once, for each read takes half a microsecond.
    place = uint32(at.number) % uint32(at.length)
    first = uint32(HEADER + at.turns)
    gates = uint32(first + OF_A_STEP * at.length)
    own = uint32(first + OF_A_STEP * place)
    is_whole = place + 1 == at.length
    following = uint32(first if is_whole else own + OF_A_STEP)
    is_last = at.number + 1 == at.together
    number, now = total[0], clock_ns()
    done, limit, ended = words[DONE], words[LIMIT], words[ENDS]
    begun, last, late = words[BEGUN], words[LAST], words[LATE]
    most_late, most, node = words[MOST_LATE], words[MOST], words[NODE]
    turn, next_turn = words[own + TURN], words[following + TURN]
    least, largest = words[following + LEAST], words[following + LARGEST]
    side, tested, bound = words[SIDE], words[own + TESTED], reals[BOUND]
    # Asked beside the next superstep: the answer comes from memory of the host.
    stopped = int64(0) if is_last else int64(cuda.ldcv(stop, 0))
    if done == 0:
        words[BEGUN] = begun = last = now
    count = announce(words, at, turn, next_turn, number)
    late = int64(0) if least <= count <= largest else late + now - last
    ends = count == 0 or late > most_late or done + 1 >= limit or number < 0
    if tested != 0:
        ends = ends or is_met(side, extremes[uint32(tested)], bound)
    ended = ended != 0 or stopped != 0 or now - begun > most
    entry = uint32(gates + at.gates + (OF_AN_ENTRY + at.seen) * done)
    words[entry], words[entry + uint32(1)] = number, now - last
    for other in range(at.seen):
        words[uint32(entry + OF_AN_ENTRY + other)] = total[uint32(1 + other)]
    words[DONE], words[LAST], words[LATE] = done + 1, now, late
    words[ENDS] = 1 if ends or ended else 0
    # Without gates all that run together do.
    ends = ends or (ended and (is_whole or at.gates == 0))
    tells = ends if at.gates > 0 else is_last
    if tells and node != 0:
        close_gates(words, at, gates)
        set_condition(uint64(node), uint32(0 if ends else 1))
