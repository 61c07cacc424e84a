"""What an application calls: adding jobs, looking at them, waiting for them."""
