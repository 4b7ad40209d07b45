"""A model imported from another system, in memory, and what it computes.

What the stages and models are called with stands here alone, one method for
each kind of value that two systems are compared by.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from realm_jax.conversion.mapping import read_parameters
from realm_jax.conversion.parameters import (
  flattened,
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import ImportPlan
from realm_jax.evaluation.answering import best_spans
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.text.wordpieces import vocabulary_of
from realm_jax.training import stages
from realm_jax.training.packing import BatchPacker
from realm_jax.training.rooms import needed_room
from realm_jax.training.step_texts import StepTexts


class Graded(NamedTuple):
  """A loss, its metrics, and its gradient by the parameter's path."""

  loss: float
  metrics: dict[str, float]
  gradient: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ImportedModel:
  """The modules, without dropout, and their parameters by component."""

  retriever: Retriever
  reader: Reader
  params: dict[str, Any]

  def query_vectors(
    self, query: Int[np.ndarray, "*b q"]
  ) -> Float[np.ndarray, "*b d"]:
    """What the query tower gives."""
    return self._retrieve(query, method="embed_queries")

  def block_vectors(
    self, block: Int[np.ndarray, "*b l"]
  ) -> Float[np.ndarray, "*b d"]:
    """What the block tower gives."""
    return self._retrieve(block, method="embed_blocks")

  def relevance(
    self, query: Int[np.ndarray, "b q"], candidates: Int[np.ndarray, "b k l"]
  ) -> Float[np.ndarray, "b k"]:
    """f(x, z)"""
    return np.asarray(
      relevance(
        jnp.asarray(self.query_vectors(query)),
        jnp.asarray(self.block_vectors(candidates)),
        score_scale=self.retriever.score_scale,
      )
    )

  def masked_lm_logits(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    mask_positions: Int[np.ndarray, "b m"],
  ) -> Float[np.ndarray, "b k m v"]:
    """Scores of the words behind the masks."""

    @jax.jit
    def read(params, *arguments):
      return self.reader.apply(
        {"params": params}, *arguments, method="masked_lm"
      )

    arguments = map(_as_int32, (query, candidates, mask_positions))
    return np.asarray(read(self.params["reader"], *arguments))

  def span_logits(
    self, query: Int[np.ndarray, "b q"], candidates: Int[np.ndarray, "b k l"]
  ) -> Float[np.ndarray, "b k l w"]:
    """Scores of spans, NaN where there is no such span."""

    @jax.jit
    def read(params, *arguments):
      return self.reader.apply({"params": params}, *arguments, method="spans")

    arguments = map(_as_int32, (query, candidates))
    spans = read(self.params["reader"], *arguments)
    return np.where(spans.is_span, spans.logits, np.nan)

  def chosen_spans(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    relevance: Float[np.ndarray, "b k"],
  ) -> Int[np.ndarray, "b 3"]:
    """Block, first token and width less one of the best span."""
    read = jax.jit(functools.partial(best_spans, self.reader, 1))
    places, _, _ = read(
      self.params["reader"],
      _as_int32(query),
      _as_int32(candidates),
      np.float32(relevance),
    )
    shape = (*candidates.shape[1:], self.reader.max_answer_width)
    return np.stack(np.unravel_index(np.asarray(places)[:, 0], shape), axis=-1)

  def pretraining(self, batch: Mapping[str, np.ndarray]) -> Graded:
    """REALM's loss; the batch is as its stage assembles it."""
    return self._graded(stages.Pretraining(), self.params, batch)

  def open_qa(self, batch: Mapping[str, np.ndarray]) -> Graded:
    """ORQA's loss; the batch is as its stage assembles it."""
    return self._graded(self._open_qa(), self.params, batch)

  def reading_spans(self, batch: Mapping[str, np.ndarray]) -> Graded:
    """ORQA's loss, where relevance is given as the batch's `scores`."""
    params = {**self.params, "retriever": {"scale": np.float32(1.0)}}
    return self._graded(self._open_qa(index_scores=True), params, batch)

  def _open_qa(self, **settings: Any) -> stages.OpenQa:
    width = self.reader.max_answer_width
    return stages.OpenQa(max_answer_width=width, **settings)

  def _retrieve(
    self, token_ids: Int[np.ndarray, "*b l"], *, method: str
  ) -> Float[np.ndarray, "*b d"]:
    @jax.jit
    def embed(params, token_ids):
      return self.retriever.apply({"params": params}, token_ids, method=method)

    return np.asarray(embed(self.params["retriever"], _as_int32(token_ids)))

  def _graded(
    self,
    stage: stages.Stage,
    params: dict[str, Any],
    batch: Mapping[str, np.ndarray],
  ) -> Graded:
    """The loss as a step computes it, on sequences that share rows."""
    arrays = {
      name: _as_int32(array) if array.dtype.kind == "i" else array
      for name, array in batch.items()
    }
    texts = StepTexts(
      stage.parts, retriever=self.retriever, reader=self.reader, groups=1
    )
    packer = BatchPacker(texts, [needed_room(texts, arrays)])
    loss = stage.loss(stages.Models(self.retriever, self.reader))
    graded = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, metrics), gradient = graded(
      params, packer(arrays), jax.random.key(0)
    )
    return Graded(
      float(value),
      {name: float(metric) for name, metric in metrics.items()},
      {path: np.asarray(g) for path, g in flattened(gradient).items()},
    )


def load(plan: ImportPlan) -> ImportedModel:
  """Carries out an import, in memory.

  Raises:
    ConversionError: the weights do not fit.
  """
  words = vocabulary_of(plan.pieces)
  vocabulary = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
  bert = dataclasses.replace(plan.retriever.bert, dropout_rate=0.0)
  retriever = plan.retriever.clone(bert=bert, projection_dropout_rate=0.0)
  retriever = retriever.for_vocabulary(**vocabulary)
  reader = plan.reader.clone(
    bert=dataclasses.replace(plan.reader.bert, dropout_rate=0.0)
  ).for_vocabulary(**vocabulary)
  parameters, report = read_parameters(
    plan.feeds,
    parameter_shapes(retriever, reader, plan.parts),
    expected_fresh=plan.expected_fresh,
  )
  parameters |= fresh_parameters(
    retriever, reader, (row.name for row in report.fresh), seed=0
  )
  return ImportedModel(retriever, reader, nested(parameters))


def joined(retrieving: ImportedModel, reading: ImportedModel) -> ImportedModel:
  """The retriever of the one with the reader of the other."""
  return ImportedModel(
    retrieving.retriever,
    reading.reader,
    {
      "retriever": retrieving.params["retriever"],
      "reader": reading.params["reader"],
    },
  )


def named_as_ours(
  plan: ImportPlan, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Tensors that are shaped and named as the parameters they belong to.

  Args:
    plan: whose rules say which parameter a tensor's name stands for.
    tensors: of the other system, such as gradients.
  """
  named = {}
  for feed in plan.feeds:
    for rule in feed.rules:
      for name in rule.names:
        if name in tensors:
          tensor = tensors[name]
          named[rule.path] = tensor.T if rule.transpose else tensor
  return named


def _as_int32(array: np.ndarray) -> np.ndarray:
  return np.asarray(array, np.int32)
