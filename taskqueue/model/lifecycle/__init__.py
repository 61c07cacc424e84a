"""What becomes of a record: the table of transitions, and one file for each kind of them."""
