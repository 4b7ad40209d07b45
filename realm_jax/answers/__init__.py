"""Which blocks contain which answer: found once for all, stored and read."""
