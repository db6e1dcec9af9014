"""Training of the embedded models and the check of a release, from a checkout; in no wheel."""
