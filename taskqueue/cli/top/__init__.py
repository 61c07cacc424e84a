"""``taskqueue top``: the live screen; nothing of it is imported by other commands."""
