"""Tests of what an application calls."""
