"""The rules of the protocol as pure functions: no I/O, no clock, no randomness, no torch."""
