"""The parts of `benchmarks/specvlm.py`: each measures one thing and tells of it."""
