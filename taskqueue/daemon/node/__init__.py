"""The node process: claims jobs, settles outcomes, holds the seat; runs no user code."""
