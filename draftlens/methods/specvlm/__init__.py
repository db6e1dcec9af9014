"""SpecVLM: the draft model reads the visual tokens that the target attends to."""
