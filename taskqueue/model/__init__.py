"""What a job is and what may happen to it: pure values and functions, without clock, I/O or chance."""
