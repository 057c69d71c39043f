"""Submit training jobs like a build tool: a graph of content-addressed steps, then a few guarded writes."""

__version__ = "0.1.0"
