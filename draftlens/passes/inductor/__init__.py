"""Passes by inductor: `engine` chooses the code of a pass, `library` loads it, and `compiler` makes
it of `static_pass`."""
