"""Types and helpers that every other package uses; imports nothing from above it."""
