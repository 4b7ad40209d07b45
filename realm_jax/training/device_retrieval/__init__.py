"""Pre-training steps that retrieve on the devices, in one compiled program."""
