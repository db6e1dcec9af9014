"""The processes that read prompts together."""
