"""Tests of the dashboard: real stores, the application without a server."""
