"""Draft tokens from the prompt, the answer so far and given texts; no draft model."""
