"""Measurements of taskqueue, run by hand; ``python -m benchmarks`` measures every workload."""
