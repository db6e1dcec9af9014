"""ParallelVLM: draft model and target work at the same time."""
