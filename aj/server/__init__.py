"""The daemon: the only part that executes and submits."""
