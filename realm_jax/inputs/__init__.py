"""From a seqio task to the batches of a step: order, position, rows, shapes."""

import tensorflow as tf

# The devices belong to jax: TensorFlow only prepares data, and would otherwise
# reserve a GPU's whole memory with its first tensor.
tf.config.set_visible_devices([], "GPU")
