"""Finds, checks and runs one job and calls its hooks, in a worker or in the caller's process."""
