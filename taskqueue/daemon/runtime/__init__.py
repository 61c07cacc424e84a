"""Used by node, manager and worker alike: event loop, timers, fork, systemd."""
