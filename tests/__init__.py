"""The tests, importable by the processes that they start."""
