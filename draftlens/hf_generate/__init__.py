"""draftlens inside transformers' own `generate`."""
