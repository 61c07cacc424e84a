"""``taskqueue bench``: what the installed system does in a second, on this machine and a given store."""
