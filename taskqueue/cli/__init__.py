"""The command lines ``taskqueue`` and ``taskqueue-node``: the only door to click, and in ``terminal`` to rich."""
