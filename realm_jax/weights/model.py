"""The model that weights are for: vocabulary, parameters, and its gin file."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.core import meta

from realm_jax.models import AnyArray
from realm_jax.models.bert import BertConfig
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights.reading import Shape
from realm_jax.weights.tables import SEPARATE_TOWERS

_USUAL_JOINT_LENGTH = 384
# Fields that are macros in a model's gin file, and those that it leaves out.
_MACROS = {
  "dropout_rate": "DROPOUT_RATE",
  "projection_dropout_rate": "DROPOUT_RATE",
  "score_scale": "SCORE_SCALE",
  "joint_length": "JOINT_LENGTH",
  # Stages label answers up to the reader's width.
  "max_answer_width": "MAX_ANSWER_WIDTH",
}
_OMITTED = (
  *("vocab_size", "separator_id", "bert", "name", "parent"),
  *("initialization", "dtype", "attention", "remat_policy"),
)


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


def default_reader(config: BertConfig) -> Reader:
  """Returns a reader with REALM's joint length, or the encoder's if shorter."""
  return Reader(
    bert=config, joint_length=min(_USUAL_JOINT_LENGTH, config.max_positions)
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
  wanted = [*paths]
  parts = {path.partition("/")[0] for path in wanted}
  values = jax.jit(_initializer(retriever, reader, parts))(jax.random.key(seed))
  query, block = (f"/{tower}/" for tower in SEPARATE_TOWERS.values())
  return {p: np.asarray(values[p.replace(block, query)]) for p in wanted}


def nested(flat: Mapping[str, AnyArray]) -> Params:
  """Returns the parameter tree of arrays that are given by path."""
  return traverse_util.unflatten_dict(dict(flat), sep="/")


def flattened(tree: Params) -> dict[str, AnyArray]:
  """Returns the arrays of a parameter tree by path."""
  return traverse_util.flatten_dict(meta.unbox(tree), sep="/")


def _initializer(
  retriever: Retriever, reader: Reader, parts: Iterable[str]
) -> Callable[[jax.Array], dict[str, AnyArray]]:
  tokens = jnp.ones((1, 3), jnp.int32)
  # A block must be as long as the widest answer.
  block = jnp.ones((1, 1, reader.max_answer_width), jnp.int32)
  arguments = {
    "retriever": (retriever, tokens, tokens),
    "reader": (reader, tokens, block, jnp.ones((1, 1), jnp.int32)),
  }
  used = {part: arguments[part] for part in sorted(set(parts))}
  return lambda key: flattened(
    {
      part: module.init(key, *inputs)["params"]
      for part, (module, *inputs) in used.items()
    }
  )


def gin_model(retriever: Retriever, reader: Reader, *, source: str) -> str:
  """Returns a gin file that binds RETRIEVER and READER to these modules.

  All numbers that the weights depend on are written out, except the
  vocabulary's, which the corpus gives. Values that a run may change are macros.
  Both modules have one encoder. The header names the `source` of the weights.
  """
  lines = [
    f"# The model of the weights imported from {source}.",
    "# It replaces gin/models/bert_base.gin with every file of gin/runs.",
    "# Sizes must stay; the macros may change.",
    "from __gin__ import dynamic_registration",
    "",
    *(
      f"from realm_jax.models import {n}"
      for n in ("bert", "retriever", "reader")
    ),
    "",
  ]
  macros = {}
  for name, module in (
    ("bert.BertConfig", retriever.bert),
    ("retriever.Retriever", retriever),
    ("reader.Reader", reader),
  ):
    if module is not retriever.bert:
      lines.append(f"{name}.bert = @bert.BertConfig()")
    for field in dataclasses.fields(module):
      if field.name in _OMITTED:
        continue
      value = getattr(module, field.name)
      if macro := _MACROS.get(field.name):
        # Both dropout rates are the encoder's.
        macros.setdefault(macro, value)
      # gin reads both kinds of quotes.
      shown = f"%{macro}" if macro else repr(value)
      lines.append(f"{name}.{field.name} = {shown}")
    lines.append("")
  lines += [f"{macro} = {value!r}" for macro, value in macros.items()]
  lines += ["RETRIEVER = @retriever.Retriever()", "READER = @reader.Reader()"]
  return "\n".join(lines) + "\n"
