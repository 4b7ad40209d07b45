"""Inputs: from a seqio task to the batches of a step."""

import tensorflow as tf

# jax uses the devices. TensorFlow only prepares data, and would otherwise
# reserve all memory of a GPU with its first tensor.
tf.config.set_visible_devices([], "GPU")
