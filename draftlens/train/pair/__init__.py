"""Making the embedded pair: ``python -m draftlens.train.pair``."""
