"""The model and the contestants of `benchmarks/race.py`."""
