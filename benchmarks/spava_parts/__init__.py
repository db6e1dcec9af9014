"""Parts of `benchmarks/spava.py`."""
