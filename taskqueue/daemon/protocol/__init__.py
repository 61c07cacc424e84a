"""What node, manager and worker exchange: messages, channels and shared memory."""
