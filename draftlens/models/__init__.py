"""The adapter to transformers: models, prompts and caches."""
