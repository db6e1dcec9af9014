"""Training of the embedded models. It runs from a checkout and is not part of the wheel."""
