"""Tests of the testing kit, which are themselves written with it."""
