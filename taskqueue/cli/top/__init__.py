"""``taskqueue top``: the live screen; other commands import none of it."""
