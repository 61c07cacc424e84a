"""Tests of ``taskqueue.django``."""
