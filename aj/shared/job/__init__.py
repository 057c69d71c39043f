"""From a template, flags and a command to a JobSpec."""
