"""The manager process: keeps the worker pool and monitors runs; never opens the store."""
