"""From a plan to the text of a module: functions, kernels, what goes around them."""
