"""Benchmarks of speed, robustness and parity with other systems."""

import os

# As in `realm_jax/configuration/__init__.py`: before jax and TensorFlow are
# imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
