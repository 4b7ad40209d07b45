"""Code shared by tests and benchmarks: processes, faults and other systems."""
