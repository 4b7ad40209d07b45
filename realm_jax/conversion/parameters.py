"""The parameters that a plan's model has: shapes, and fresh values."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from realm_jax.conversion.plan import SEPARATE_TOWERS
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever


def parameter_shapes(
  retriever: Retriever, reader: Reader, parts: Iterable[str]
) -> dict[str, tuple[int, ...]]:
  """The shape of every parameter of the parts, by path.

  Args:
    retriever: over a vocabulary.
    reader: over a vocabulary.
    parts: `retriever`, `reader` or both.
  """
  init = _init(retriever, reader, tuple(parts))
  return {
    path: tuple(leaf.shape)
    for path, leaf in jax.eval_shape(init, jax.random.key(0)).items()
  }


def fresh_parameters(
  retriever: Retriever, reader: Reader, paths: Iterable[str], *, seed: int
) -> dict[str, np.ndarray]:
  """Initial values of some parameters, by path.

  What is fresh in both towers is the same in both, so that an untrained
  retriever compares like with like.
  """
  wanted = sorted(paths)
  if not wanted:
    return {}
  parts = sorted({path.partition("/")[0] for path in wanted})
  init = _init(retriever, reader, tuple(parts))

  def init_wanted(key: jax.Array) -> dict[str, jax.Array]:
    everything = init(key)
    return {path: everything[path] for path in wanted}

  # Compiled, only these are computed, however large the model.
  made = jax.jit(init_wanted)(jax.random.key(seed))
  fresh: dict[str, np.ndarray] = {
    path: np.asarray(value) for path, value in made.items()
  }
  query, block = (f"retriever/{tower}/" for tower in SEPARATE_TOWERS)
  for path in wanted:
    twin = path.replace(block, query)
    if path.startswith(block) and twin in fresh:
      fresh[path] = fresh[twin]
  return fresh


def nested(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """The tree of arrays by path."""
  return traverse_util.unflatten_dict(dict(flat), sep="/")


def flattened(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Arrays by path, of a tree."""
  return traverse_util.flatten_dict(dict(tree), sep="/")


def _init(retriever: Retriever, reader: Reader, parts: tuple[str, ...]) -> Any:
  tokens = jnp.ones((1, 3), jnp.int32)

  def init(key: jax.Array) -> dict[str, jax.Array]:
    params: dict[str, Any] = {}
    if "retriever" in parts:
      params["retriever"] = retriever.init(key, tokens, tokens)["params"]
    if "reader" in parts:
      # A block must have room for the widest answer.
      block = jnp.ones((1, 1, reader.max_answer_width), jnp.int32)
      params["reader"] = reader.init(
        key, tokens, block, jnp.ones((1, 1), jnp.int32)
      )["params"]
    return flattened(nn.unbox(params))

  return init
