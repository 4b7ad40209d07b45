"""Real processes of a run for tests and benchmarks, and a store for them."""
