"""Training of the reader, a small model that reads pages: ``python -m recipes.reader``."""
