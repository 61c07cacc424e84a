"""Tests that hold the documentation to what the code does."""
