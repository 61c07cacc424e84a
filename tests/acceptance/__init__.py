"""Whole systems: real nodes, real stores, real signals."""
