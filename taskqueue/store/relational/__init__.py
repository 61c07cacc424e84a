"""What decides in every relational store; the engine of each database runs its statements and transactions."""
