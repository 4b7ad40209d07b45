"""Shapes and initial values of a model's parameters, by path."""

from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from realm_jax.conversion.plan import SEPARATE_TOWERS
from realm_jax.conversion.tensors import Shape
from realm_jax.models.arrays import AnyArray
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever


def parameter_shapes(
  retriever: Retriever, reader: Reader, parts: Iterable[str]
) -> dict[str, Shape]:
  """Returns the shape of every parameter of the parts, by path.

  Args:
    retriever: Towers with a vocabulary.
    reader: Reader with a vocabulary.
    parts: `retriever`, `reader` or both.
  """
  init = _initializer(retriever, reader, tuple(parts))
  return {
    path: tuple(leaf.shape)
    for path, leaf in jax.eval_shape(init, jax.random.key(0)).items()
  }


def fresh_parameters(
  retriever: Retriever, reader: Reader, paths: Iterable[str], *, seed: int
) -> dict[str, np.ndarray]:
  """Returns random initial values of some parameters, by path.

  A parameter that is initialized in both towers gets the same value in both,
  so that an untrained retriever compares like with like.
  """
  wanted = sorted(paths)
  if not wanted:
    return {}
  parts = sorted({path.partition("/")[0] for path in wanted})
  init = _initializer(retriever, reader, tuple(parts))

  def init_wanted(key: jax.Array) -> dict[str, jax.Array]:
    everything = init(key)
    return {path: everything[path] for path in wanted}

  # The compiler drops the parameters that are not wanted.
  values = jax.jit(init_wanted)(jax.random.key(seed))
  fresh: dict[str, np.ndarray] = {
    path: np.asarray(value) for path, value in values.items()
  }
  query, block = (f"retriever/{tower}/" for tower in SEPARATE_TOWERS)
  for path in wanted:
    twin = path.replace(block, query)
    if path.startswith(block) and twin in fresh:
      fresh[path] = fresh[twin]
  return fresh


def nested(flat: Mapping[str, AnyArray]) -> Params:
  """Returns the parameter tree of arrays that are given by path."""
  return traverse_util.unflatten_dict(dict(flat), sep="/")


def flattened(tree: Params) -> dict[str, AnyArray]:
  """Returns the arrays of a parameter tree by path."""
  return traverse_util.flatten_dict(tree, sep="/")


def _initializer(
  retriever: Retriever, reader: Reader, parts: tuple[str, ...]
) -> Callable[[jax.Array], dict[str, jax.Array]]:
  tokens = jnp.ones((1, 3), jnp.int32)

  def init(key: jax.Array) -> dict[str, jax.Array]:
    params: Params = {}
    if "retriever" in parts:
      params["retriever"] = retriever.init(key, tokens, tokens)["params"]
    if "reader" in parts:
      # A block must be as long as the widest answer.
      block = jnp.ones((1, 1, reader.max_answer_width), jnp.int32)
      params["reader"] = reader.init(
        key, tokens, block, jnp.ones((1, 1), jnp.int32)
      )["params"]
    return traverse_util.flatten_dict(nn.unbox(params), sep="/")

  return init
