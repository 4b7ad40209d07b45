"""State, step, loop and optimizer of the three stages of training."""
