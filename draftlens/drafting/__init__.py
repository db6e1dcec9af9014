"""Drafting with a model."""
