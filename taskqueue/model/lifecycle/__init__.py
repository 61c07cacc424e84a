"""The transitions of a record, one file for each kind."""
