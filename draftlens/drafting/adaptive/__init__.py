"""Trees chosen by measured costs and acceptance rates."""
