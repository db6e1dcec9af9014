"""The state of the answers while they grow."""
