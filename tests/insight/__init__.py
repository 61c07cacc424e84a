"""Tests of the answers about a store."""
