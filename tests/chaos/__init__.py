"""What is done to processes, servers and connections, and what must hold all the same."""
