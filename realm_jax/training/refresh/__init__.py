"""Which generation a run searches, and when it swaps in another."""
