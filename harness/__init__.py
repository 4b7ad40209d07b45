"""What tests and benchmarks share: real processes, faults and other systems."""
