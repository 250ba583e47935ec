"""Arrays as callers give them: looked at where they are."""
