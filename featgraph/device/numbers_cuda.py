"""`featgraph.device.numbers` for generated CUDA kernels."""

from featgraph._cuda import device_function, float32, float64
from featgraph.device import numbers

_compiled = device_function
_functions = numbers.make(_compiled)
_choices = numbers.make_choices(_compiled)

to_int = _functions.to_int
add = _functions.add
subtract = _functions.subtract
multiply = _functions.multiply
negate = _functions.negate
absolute = _functions.absolute
floor_divide = _functions.floor_divide
remainder = _functions.remainder
power = _functions.power
shift_left = _functions.shift_left
shift_right = _functions.shift_right
lesser = _choices.lesser
greater = _choices.greater
range_stop = _choices.range_stop
range_step = _choices.range_step

(
    is_less_float32,
    is_at_most_float32,
    is_greater_float32,
    is_at_least_float32,
    is_equal_float32,
) = numbers.make_comparisons(_compiled, float32)

(
    is_less_float64,
    is_at_most_float64,
    is_greater_float64,
    is_at_least_float64,
    is_equal_float64,
) = numbers.make_comparisons(_compiled, float64)
