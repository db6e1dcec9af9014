"""Benchmarks, explanations, evaluation and training for draftlens."""
