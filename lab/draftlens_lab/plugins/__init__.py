"""Baselines and ablations: pruners and prefills, by the entry points of draftlens."""
