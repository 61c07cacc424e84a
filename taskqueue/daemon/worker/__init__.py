"""The worker process: loads jobs, runs them and can be interrupted."""
