"""Parts of `benchmarks/documents.py`."""
