"""Progress of running commands, and how SIGTERM stops them."""
