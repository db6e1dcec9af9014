"""Ways to read a prompt: from a prompt to a filled cache, first logits and features."""
