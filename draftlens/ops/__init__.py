"""Pure functions of tensors; no models, no state."""
