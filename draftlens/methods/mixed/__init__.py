"""Draft tokens from a model or from texts, whichever is expected to be faster in each round."""
