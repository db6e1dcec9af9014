"""The registered attention of language models, and what it can observe."""
