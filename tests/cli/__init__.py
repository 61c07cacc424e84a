"""Tests of the command lines, run as people run them."""
