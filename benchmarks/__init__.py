"""Benchmarks of speed, robustness and parity with other systems."""

import os

# Set before jax and TensorFlow are imported, as in
# `realm_jax/configuration/__init__.py`.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
