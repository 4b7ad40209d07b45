"""A model imported from another system into memory, and what it computes.

There is one method for each kind of value that is compared, so that the
comparisons do not depend on the signatures of stages and models.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from realm_jax.evaluation.answers import span_logits
from realm_jax.models.packing import content_numbers
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader, Spans
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_rows import (
  Candidates,
  EncoderRows,
  RowLayout,
  needed_rows,
)
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.open_qa import (
  OpenQa,
  OpenQaBatch,
)
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.stage import Models, Stage, StepBatch
from realm_jax.weights import tables
from realm_jax.weights.model import flattened, nested
from realm_jax.weights.plan import Plan


class LossAndGradient(NamedTuple):
  """A loss, its metrics, and its gradient by path of the parameter."""

  loss: float
  metrics: dict[str, float]
  gradient: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ImportedModel:
  """Modules without dropout, and their parameters by component."""

  retriever: Retriever
  reader: Reader
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
    """Computes the scores of all words at the masks."""
    return np.asarray(self._read(query, candidates, mask_positions)[0])

  def span_logits(
    self, query: Int[np.ndarray, "b q"], candidates: Int[np.ndarray, "b k l"]
  ) -> Float[np.ndarray, "b k l w"]:
    """Computes the scores of spans, with NaN for spans that are not valid."""
    no_masks = np.zeros((len(query), 1))
    spans = self._read(query, candidates, no_masks)[1]
    return np.where(spans.is_span, spans.logits, np.nan)

  def chosen_spans(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    relevance: Float[np.ndarray, "b k"],
  ) -> Int[np.ndarray, "b 3"]:
    """Returns block, first token and width less one of the best span."""
    read = jax.jit(functools.partial(span_logits, self.reader))
    logits = np.asarray(
      read(self.params["reader"], _as_int32(query), _as_int32(candidates))
    )
    totals = logits + relevance.astype(np.float32)[:, :, None, None]
    best = totals.reshape(len(query), -1).argmax(axis=1)
    return np.stack(np.unravel_index(best, logits.shape[1:]), axis=-1)

  def pretraining(self, arrays: Mapping[str, np.ndarray]) -> LossAndGradient:
    """Computes REALM's loss and its gradient for padded arrays."""
    candidates = _as_int32(arrays["candidates"])
    masks = MaskTargets(
      _as_int32(arrays["mask_positions"]),
      _as_int32(arrays["mask_targets"]),
      arrays["mask_weights"],
    )
    numbered = Candidates(candidates, content_numbers(candidates))
    batch = PretrainingBatch(_as_int32(arrays["query"]), numbered, masks)
    return self._graded(Pretraining(), batch)

  def open_qa(self, arrays: Mapping[str, np.ndarray]) -> LossAndGradient:
    """Computes ORQA's loss and its gradient for padded arrays."""
    query = _as_int32(arrays["query"])
    blocks = _as_int32(arrays["candidates"])
    answers = arrays["has_answer"], arrays["is_answer"]
    batch = OpenQaBatch(query, arrays["vectors"], query, blocks, *answers)
    return self._graded(OpenQa(), batch)

  def _read(self, *token_ids: np.ndarray) -> tuple[jax.Array, Spans]:
    read = jax.jit(self.reader.apply)
    return read({"params": self.params["reader"]}, *map(_as_int32, token_ids))

  def _retrieve(
    self, token_ids: Int[np.ndarray, "*b l"], *, method: str
  ) -> Float[np.ndarray, "*b d"]:
    embed = jax.jit(functools.partial(self.retriever.apply, method=method))
    params = {"params": self.params["retriever"]}
    return np.asarray(embed(params, _as_int32(token_ids)))

  def _graded(self, stage: Stage, batch: StepBatch) -> LossAndGradient:
    """Computes the loss as a training step does, on packed sequences."""
    rows_of, loss = stage.functions(Models(self.retriever, self.reader))
    numbers = jnp.arange(len(batch.query), dtype=jnp.uint32)
    needed = jax.jit(lambda *given: needed_rows(rows_of(*given)))
    counts = needed(batch, numbers)
    mesh = make_mesh(devices=jax.devices()[:1])
    layout = RowLayout(mesh, (tuple(counts.tolist()),))

    def mean_and_metrics(
      params: Params, batch: StepBatch, rows: EncoderRows
    ) -> tuple[jax.Array, dict[str, Any]]:
      weighted = loss(params, batch, rows, jax.random.key(0))
      return weighted.loss.mean, weighted.means()

    @jax.jit
    def graded(params: Params, batch: StepBatch) -> Any:
      return layout.with_rows(
        lambda numbered: rows_of(*numbered),
        (batch, numbers),
        lambda rows: jax.value_and_grad(mean_and_metrics, has_aux=True)(
          params, batch, rows
        ),
      )

    (value, metrics), gradient = graded(self.params, batch)
    return LossAndGradient(
      float(value),
      {name: float(metric) for name, metric in metrics.items()},
      {path: np.asarray(g) for path, g in flattened(gradient).items()},
    )


def load(plan: Plan) -> ImportedModel:
  """Imports a model into memory.

  Raises:
    WeightsError: The weights do not fit.
  """
  retriever, reader, _ = plan.model
  bert = dataclasses.replace(retriever.bert, dropout_rate=0.0)
  parameters, _ = plan.load()
  return ImportedModel(
    retriever.clone(bert=bert, projection_dropout_rate=0.0),
    reader.clone(bert=bert),
    nested(parameters),
  )


def named_as_ours(
  plan: Plan, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Renames and transposes tensors to match our parameters.

  Args:
    plan: Plan whose table maps names of tensors to parameters.
    tensors: Tensors of the other system, such as gradients.
  """
  named = {}
  for place in tables.places(plan.table, plan.source.system):
    for name in place.names:
      if name in tensors and place.path.startswith(tuple(plan.parts)):
        tensor = tensors[name]
        named[place.path] = tensor.T if place.is_transposed else tensor
  return named


def _as_int32(array: np.ndarray) -> np.ndarray:
  return np.asarray(array, np.int32)
