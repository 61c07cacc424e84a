"""Answers people's questions about a store: why a job waits, what needs attention, how nodes and queues are doing.

It reads a store and never writes to it.
"""
