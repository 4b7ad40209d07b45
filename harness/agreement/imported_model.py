"""A model imported into memory from another system, and its outputs.

It has a method for each kind of value to compare, so comparisons do not depend
on the signatures of stages and models.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from realm_jax.models.components import Components
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader, Spans
from realm_jax.models.retriever import BertRetriever, relevance
from realm_jax.objectives.contrastive import BlockHashes
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_inputs import (
  Candidates,
  EncoderInputs,
  PackingLayout,
  to_words,
)
from realm_jax.training.stages.contrastive import Contrastive, ContrastiveBatch
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.open_qa import OpenQa, OpenQaBatch
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.stage import Stage, StepBatch
from realm_jax.weights import name_maps
from realm_jax.weights.mapped_weights import MappedWeights, flattened, nested


class Graded(NamedTuple):
  """Metrics of a loss, including the loss, and its gradient by path."""

  metrics: dict[str, float]
  gradient: dict[str, np.ndarray]


class ImportedModel(NamedTuple):
  """Modules without dropout, and their parameters by component."""

  retriever: BertRetriever
  reader: BertReader
  params: dict[str, Any]

  def query_vectors(
    self, query: Int[np.ndarray, "*b q"]
  ) -> Float[np.ndarray, "*b d"]:
    """Embeds queries."""
    return self._retrieve(query, method="embed_queries")

  def block_vectors(
    self, block: Int[np.ndarray, "*b l"]
  ) -> Float[np.ndarray, "*b d"]:
    """Embeds blocks."""
    return self._retrieve(block, method="embed_blocks")

  def relevance(
    self, query: Int[np.ndarray, "b q"], candidates: Int[np.ndarray, "b k l"]
  ) -> Float[np.ndarray, "b k"]:
    """Computes the relevance f(x, z)."""
    vectors = self.query_vectors(query), self.block_vectors(candidates)
    score_scale = self.retriever.score_scale
    scores = relevance(*map(jnp.asarray, vectors), score_scale=score_scale)
    return np.asarray(scores)

  def masked_lm_logits(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    mask_positions: Int[np.ndarray, "b m"],
  ) -> Float[np.ndarray, "b k m v"]:
    """Computes the logits of all words at the masks."""
    return np.asarray(self._read(query, candidates, mask_positions)[0])

  def span_logits(
    self, query: Int[np.ndarray, "b q"], candidates: Int[np.ndarray, "b k l"]
  ) -> Float[np.ndarray, "b k l w"]:
    """Computes the logits of spans, with NaN for invalid spans."""
    no_masks = np.zeros((len(query), 1))
    spans = self._read(query, candidates, no_masks)[1]
    return np.where(spans.is_span, spans.logits, np.nan)

  def pretraining(self, arrays: Mapping[str, np.ndarray]) -> Graded:
    """Computes REALM's loss and its gradient for padded arrays."""
    candidates = _as_int32(arrays["candidates"])
    masks = MaskTargets(
      _as_int32(arrays["mask_positions"]),
      _as_int32(arrays["mask_targets"]),
      arrays["mask_weights"],
    )
    batch = PretrainingBatch(
      _as_int32(arrays["query"]), Candidates.of(candidates), masks
    )
    return self._graded(Pretraining(), batch)

  def open_qa(self, arrays: Mapping[str, np.ndarray]) -> Graded:
    """Computes ORQA's loss and its gradient for padded arrays."""
    query = _as_int32(arrays["query"])
    blocks = _as_int32(arrays["candidates"])
    answers = arrays["has_answer"], arrays["is_answer"]
    batch = OpenQaBatch(query, arrays["vectors"], blocks, *answers)
    return self._graded(OpenQa(), batch)

  def contrastive(
    self,
    stage: Contrastive,
    query: Int[np.ndarray, "b q"],
    blocks: Int[np.ndarray, "b k l"],
  ) -> Graded:
    """Computes a contrastive loss and its gradient for padded arrays.

    All blocks are different. A query's first block is relevant, and its other
    blocks are negatives.
    """
    numbers = np.arange(1, 1 + blocks.shape[0] * blocks.shape[1])
    hashes = to_words(numbers.reshape(blocks.shape[:2]))
    block_hashes = BlockHashes(
      hashes, hashes[:, :1], np.ones(blocks.shape[:2], bool)
    )
    batch = ContrastiveBatch(_as_int32(query), _as_int32(blocks), block_hashes)
    return self._graded(stage, batch)

  def _read(self, *token_ids: np.ndarray) -> tuple[jax.Array, Spans]:
    read = jax.jit(self.reader.apply)
    return read({"params": self.params["reader"]}, *map(_as_int32, token_ids))

  def _retrieve(
    self, token_ids: Int[np.ndarray, "*b l"], *, method: str
  ) -> Float[np.ndarray, "*b d"]:
    embed = jax.jit(functools.partial(self.retriever.apply, method=method))
    params = {"params": self.params["retriever"]}
    return np.asarray(embed(params, _as_int32(token_ids)))

  def _graded(self, stage: Stage, batch: StepBatch) -> Graded:
    """Computes the loss like a training step, without packing."""
    components = Components(
      {"retriever": self.retriever, "reader": self.reader}
    )
    layout = PackingLayout(make_mesh(devices=jax.devices()[:1]))

    def mean_and_metrics(params: Params, rows: EncoderInputs) -> Any:
      encoders = stage.encoders(components, params, jax.random.key(0))
      weighted = stage.loss(encoders, batch, rows)
      return weighted.loss.mean, weighted.means()

    grade = jax.value_and_grad(mean_and_metrics, has_aux=True)
    (value, metrics), gradient = jax.jit(
      lambda params: layout.with_inputs(
        functools.partial(stage.inputs, components),
        batch,
        lambda rows: grade(params, rows),
      )
    )(self.params)
    values = {name: float(metric) for name, metric in metrics.items()}
    return Graded(
      {**values, "loss": float(value)},
      {path: np.asarray(g) for path, g in flattened(gradient).items()},
    )


def load(mapped: MappedWeights) -> ImportedModel:
  """Returns a model from its mapped weights, without dropout."""
  retriever, reader, _ = mapped.model
  bert = dataclasses.replace(retriever.bert, dropout_rate=0.0)
  return ImportedModel(
    retriever.clone(bert=bert, projection_dropout_rate=0.0),
    reader.clone(bert=bert),
    nested(mapped.parameters),
  )


def named_as_ours(
  mapped: MappedWeights, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Renames and transposes tensors to match our parameters.

  Args:
    mapped: Weights whose table maps names of tensors to parameters.
    tensors: Tensors of the other system, such as gradients.
  """
  return {
    entry.path: tensors[name].T if entry.is_transposed else tensors[name]
    for entry in name_maps.mapped_tensors(mapped.table, mapped.source.system)
    for name in entry.names
    if name in tensors and entry.path.startswith(tuple(mapped.parts))
  }


def _as_int32(array: np.ndarray) -> np.ndarray:
  return np.asarray(array, np.int32)
