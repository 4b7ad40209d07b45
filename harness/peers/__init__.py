"""Programs that run other systems in the environment of `make peers`."""
