"""Building blocks that `draftlens_lab.bench`, `draftlens_lab.evaluate` and the benchmark scripts
share."""
