"""The package in which Django looks for the command ``taskqueue``."""
