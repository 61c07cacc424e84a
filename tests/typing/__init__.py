"""What type checkers say to users of the package."""
