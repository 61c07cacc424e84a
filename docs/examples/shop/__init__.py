"""A small shop: a web application whose slow work is done by jobs."""
