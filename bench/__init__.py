"""Benchmarks: `python -m bench.run NAME`; README.md says what each figure is."""
