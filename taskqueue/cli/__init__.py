"""The command lines ``taskqueue`` and ``taskqueue-node``: no other package imports click, or rich (in ``terminal``)."""
