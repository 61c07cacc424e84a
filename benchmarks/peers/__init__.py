"""The same workloads for other job systems, side by side with ours: ``python -m benchmarks.peers``."""
