"""The check of a release: what the wheels hold, and what their commands do elsewhere."""
