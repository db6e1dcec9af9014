"""The parts of `benchmarks/specvlm.py`: each measures one thing and reports it in Markdown."""
