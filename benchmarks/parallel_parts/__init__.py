"""Parts of the benchmark of drafting and checking at the same time."""
