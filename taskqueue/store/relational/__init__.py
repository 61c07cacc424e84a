"""The rules of every relational store; the engine of each database runs their statements and transactions."""
