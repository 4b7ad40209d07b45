"""TensorFlow 1 checkpoints of Mesh TensorFlow, such as T5 for closed-book QA.

model.ckpt-1110000.{index,data-…}, opened by its prefix or its folder

The models that Roberts et al. (2020) trained further on salient spans were
published only in this form.
"""

import re
from pathlib import Path

import numpy as np

from realm_jax.weights.google import locate_checkpoint, open_checkpoint

# Variables of an optimizer: Adafactor's `…_slot_vr`, Adam's moments, the step.
_UNUSED = re.compile(r"(.*/)?(\w+_slot_\w+|adam_[mv]|global_step)")
_REPLACED = {
  r"(block|layer)_(\d+)": lambda m: f"{m[1]}/{int(m[2])}",
  r"/rms_norm/": "/layer_norm/",
  r"^((en|de)coder)/layer_norm/": r"\1/final_layer_norm/",
  r"^decoder/logits/": "lm_head/",
  r"/(kernel|scale|embedding)$": "",
}


def read_mesh(path: Path) -> dict[str, np.ndarray]:
  """Reads the parameters, with Hugging Face's names for them.

  Raises:
    WeightsError: There is no checkpoint, or more than one, or it is damaged.
  """
  tensors = {}
  with open_checkpoint(locate_checkpoint(path)) as reader:
    for name in reader.get_variable_to_shape_map():
      if _UNUSED.fullmatch(name):
        continue
      named = name
      for pattern, replacement in _REPLACED.items():
        named = re.sub(pattern, replacement, named)
      array = np.asarray(reader.get_tensor(name))
      # Kernels and relative position biases are transposed. For scales, which
      # have one dimension, this changes nothing.
      array = array if name.endswith("/embedding") else array.T
      tensors[f"{named}/weight".replace("/", ".")] = array
  return tensors
