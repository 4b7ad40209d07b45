"""The trainer's side: finding, verifying and loading generations."""
