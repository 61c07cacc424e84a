"""The job model: pure values and rules, without clock, I/O or randomness."""
