"""The nouns of the library. Nothing above this package is imported here."""
