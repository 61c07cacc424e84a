"""The ground that node, manager and worker stand on: event loop, timers, fork, systemd."""
