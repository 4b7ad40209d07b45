"""Speed and endurance; each module prints a table, and JSON with `--json`."""
