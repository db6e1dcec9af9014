"""Methods that SPAVA is compared with (section 5.1 of the paper), for accuracy and counted work.

They are part of the benchmark and not of draftlens: as block masks over exact attention they save
nothing, and fast kernels for them are outside of its scope.
"""
