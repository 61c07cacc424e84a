"""The version of the package, which setup.cfg reads too: its name on the package index is not asked for."""

VERSION = "0.1.0"
