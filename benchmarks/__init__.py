"""Benchmarks of speed, robustness and parity with other systems."""
