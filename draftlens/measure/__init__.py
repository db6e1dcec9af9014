"""Building blocks that `draftlens.bench`, `draftlens.evaluate` and the benchmark scripts share."""
