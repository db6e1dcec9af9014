"""Methods as frozen dataclasses: the same keys in Python, in JSON and in YAML."""
