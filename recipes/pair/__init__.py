"""Making the embedded pair: ``python -m recipes.pair``."""
