"""How the embedded models are trained; run from a checkout, not part of the wheel."""
