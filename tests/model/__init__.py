"""What the model decides."""
