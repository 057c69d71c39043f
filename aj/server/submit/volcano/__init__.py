"""The daemon's half of `volcano`."""
