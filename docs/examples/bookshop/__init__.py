"""A small bookshop: a web application whose slow work is done by jobs."""
