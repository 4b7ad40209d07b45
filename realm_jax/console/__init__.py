"""What a running command shows, and how it is told to stop."""
