"""Tests of how one job is run."""
