"""What users and programs see of the package, recorded: it changes only on purpose, with a line in ``changes.md``."""
