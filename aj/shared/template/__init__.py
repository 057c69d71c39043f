"""Templates: which files make one, how they merge, and the result."""
