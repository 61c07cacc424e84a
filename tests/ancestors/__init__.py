"""What the systems before this one were tested with, and what went wrong in them, on every store."""
