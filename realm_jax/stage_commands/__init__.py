"""The commands of stages, run by commands that run several of them."""
