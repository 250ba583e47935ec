"""From a phase of the plan to the statements of its kernel, in named passes."""
