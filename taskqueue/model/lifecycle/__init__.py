"""The transitions of a record: the table, and one file for each kind."""
