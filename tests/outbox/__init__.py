"""Tests of the outbox."""
