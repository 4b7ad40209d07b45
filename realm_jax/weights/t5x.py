"""Checkpoints of t5x, the form in which Google publishes T5, T5 1.1 and mT5.

checkpoint                the tree in msgpack, with small arrays
target.encoder.….kernel/  large arrays in zarr, which the tree refers to

The layers of `scalable_t5` are stacked along the second axis.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from flax import serialization, traverse_util

from realm_jax.weights import WeightsError

# File of the tree.
TREE = "checkpoint"
_NAMES = {
  "token_embedder/embedding": "shared.weight",
  "decoder/logits_dense/kernel": "lm_head.weight",
  "encoder/encoder_norm/scale": "encoder.final_layer_norm.weight",
  "decoder/decoder_norm/scale": "decoder.final_layer_norm.weight",
}
_BIASES = ("relpos_bias/rel_embedding", "relative_posemb/rel_embedding")
_BIAS = "SelfAttention.relative_attention_bias.weight"
# Modules of a layer, with {last} for the position of the feed-forward layer.
_MODULES = {
  "pre_attention_layer_norm": "0.layer_norm",
  "pre_self_attention_layer_norm": "0.layer_norm",
  "attention": "0.SelfAttention",
  "self_attention": "0.SelfAttention",
  "pre_cross_attention_layer_norm": "1.layer_norm",
  "encoder_decoder_attention": "1.EncDecAttention",
  "pre_mlp_layer_norm": "{last}.layer_norm",
  "mlp": "{last}.DenseReluDense",
}
_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
_LAYER = re.compile(r"(encoder|decoder)/layers(?:_(\d+))?/(\w+)/(.*)")


def read_t5x(directory: Path) -> dict[str, np.ndarray]:
  """Reads the parameters, with Hugging Face's names for them."""
  try:
    tree = serialization.msgpack_restore((directory / TREE).read_bytes())
    tree = tree.get("optimizer", tree)["target"]
    flat = traverse_util.flatten_dict(
      tree, sep="/", is_leaf=lambda _, node: "kvstore" in node
    )
    arrays = {path: _read(directory, leaf) for path, leaf in flat.items()}
  # A damaged file can raise anything.
  except Exception as error:
    raise WeightsError(
      f"{directory / TREE} cannot be read ({error!r}); want a checkpoint of "
      "t5x: copy the whole folder checkpoint_STEP again"
    ) from error
  return dict(
    named for path, array in arrays.items() for named in _named(path, array)
  )


def _read(directory: Path, leaf: Any) -> np.ndarray:
  if not isinstance(leaf, dict):
    return np.asarray(leaf)
  path = leaf["kvstore"].get("path") or leaf["path"]
  place = directory / Path(path).name
  store = {"driver": "file", "path": f"{place}/"}
  array = tensorstore.open({"driver": "zarr", "kvstore": store}, open=True)
  return array.result().read().result()


def _named(path: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the name and the tensor of a parameter, for each layer."""
  if path in _NAMES:
    is_kernel = path.endswith("/kernel")
    yield _NAMES[path], array.T if is_kernel else array
    return
  stack, _, rest = path.partition("/")
  if rest == _BIASES[0]:
    yield f"{stack}.block.0.layer.0.{_BIAS}", array.T
    return
  layer = _LAYER.fullmatch(path)
  if layer is None:
    yield path, array
    return
  stack, number, module, name = layer.groups()
  layers = {number: array}
  if number is None:
    layers = dict(enumerate(np.moveaxis(array, 1, 0)))
  if f"{module}/{name}" == _BIASES[1]:
    first, *others = layers.values()
    if any(not np.array_equal(first, other) for other in others):
      raise WeightsError(
        f"{path} differs between layers; T5 has one bias for all layers of a "
        "stack"
      )
    yield f"{stack}.block.0.layer.0.{_BIAS}", first.T
    return
  last = {"encoder": 1, "decoder": 2}[stack]
  module = _MODULES.get(module, module).format(last=last)
  part, _, kind = name.rpartition("/")
  part = _ATTENTION.get(part, part)
  for i, tensor in layers.items():
    start = f"{stack}.block.{i}.layer.{module}"
    if kind == "scale":
      yield f"{start}.weight", tensor
    else:
      yield f"{start}.{part}.weight", tensor.T
