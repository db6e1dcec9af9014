"""Training of the embedded pair: ``python -m recipes.pair``."""
