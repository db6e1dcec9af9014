"""A server for OpenAI clients: many users, one model, each with the tokens of `generate`."""
