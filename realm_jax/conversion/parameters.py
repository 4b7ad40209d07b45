"""A model with its vocabulary; shapes and initial values of its parameters."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from realm_jax.conversion.mapping import Shape
from realm_jax.conversion.planning import SEPARATE_TOWERS
from realm_jax.models import AnyArray
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary


class BoundModel(NamedTuple):
  """A retriever and a reader for a vocabulary, and the vocabulary."""

  retriever: Retriever
  reader: Reader
  vocabulary: WordpieceVocabulary

  @classmethod
  def of(
    cls, retriever: Retriever, reader: Reader, vocabulary: WordpieceVocabulary
  ) -> "BoundModel":
    """Binds modules that have no vocabulary yet."""
    size, separator_id = vocabulary.vocab_size, vocabulary.sep_id
    return cls(
      retriever.for_vocabulary(vocab_size=size, separator_id=separator_id),
      reader.for_vocabulary(vocab_size=size, separator_id=separator_id),
      vocabulary,
    )


def parameter_shapes(
  retriever: Retriever, reader: Reader, parts: Iterable[str]
) -> dict[str, Shape]:
  """Returns the shape of every parameter of the parts, by path.

  The modules must have a vocabulary.
  """
  init = _initializer(retriever, reader, parts)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return {path: tuple(leaf.shape) for path, leaf in shapes.items()}


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
  parts = {path.partition("/")[0] for path in wanted}
  init = _initializer(retriever, reader, parts)

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
    if twin in fresh:
      fresh[path] = fresh[twin]
  return fresh


def nested(flat: Mapping[str, AnyArray]) -> Params:
  """Returns the parameter tree of arrays that are given by path."""
  return traverse_util.unflatten_dict(dict(flat), sep="/")


def flattened(tree: Params) -> dict[str, AnyArray]:
  """Returns the arrays of a parameter tree by path."""
  return traverse_util.flatten_dict(tree, sep="/")


def _initializer(
  retriever: Retriever, reader: Reader, parts: Iterable[str]
) -> Callable[[jax.Array], dict[str, jax.Array]]:
  tokens = jnp.ones((1, 3), jnp.int32)
  # A block must be as long as the widest answer.
  block = jnp.ones((1, 1, reader.max_answer_width), jnp.int32)
  arguments = {
    "retriever": (retriever, tokens, tokens),
    "reader": (reader, tokens, block, jnp.ones((1, 1), jnp.int32)),
  }
  used = {part: arguments[part] for part in sorted(set(parts))}

  def init(key: jax.Array) -> dict[str, jax.Array]:
    params = {
      part: module.init(key, *inputs)["params"]
      for part, (module, *inputs) in used.items()
    }
    return traverse_util.flatten_dict(nn.unbox(params), sep="/")

  return init
