"""Hierarchical speculative decoding: the draft tokens come from a document pipeline."""
