"""The processes that run jobs on a host: a node, its manager and their workers."""
