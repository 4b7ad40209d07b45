"""Other systems: these modules run in the environment of `make peers`."""
