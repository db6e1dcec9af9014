"""Approximate attention over blocks of a long prompt, in one or several processes."""
