"""Sends findings to people: to a webhook, by mail, or to a command."""
