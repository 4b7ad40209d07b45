"""What a run says of every step, and the warning of a collapse."""
