"""Tests of the receivers of notifications, each a real one."""
