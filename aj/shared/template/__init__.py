"""From YAML files to one merged, checked template."""
