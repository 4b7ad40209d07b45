"""Flax modules: BERT, the retriever's towers and the reader."""

import jax
import numpy as np

# For pure functions that run on the host and in compiled programs alike.
AnyArray = jax.Array | np.ndarray
