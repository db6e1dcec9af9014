"""Child processes and the channels to them."""
