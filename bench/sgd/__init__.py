"""The study of schedules of exclusive edge functions, by matrix factorization."""
