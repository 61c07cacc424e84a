"""Communication between node, manager and worker: messages, channels and shared memory."""
