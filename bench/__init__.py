"""Benchmarks: `python -m bench.run NAME`; README.md lists them."""
