"""Parts of the benchmark of the automatic tree."""
