"""TABED: one draft model reads several views of the prompt."""
