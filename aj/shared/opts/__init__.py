"""The typed options and description of each backend."""
