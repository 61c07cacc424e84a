"""What every store promises, and what each keeps for itself."""
