"""A path retriever is trained on the paths of questions."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.links import neighbours
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.path_retriever import PATH_RETRIEVER
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import Fraction, NonNegativeInt, OfRun, PositiveInt
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.gold_paths import gold_paths
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class PathBatch(NamedTuple):
  """Questions, each with the passages of its path and with others.

  Attributes:
    blocks: The path's, as many as a path may have, then the others.
    is_next: Whether a passage, or the end in the last column, is the one to
      choose in a step.
    counts: Whether the loss has a term for it there.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b n l"]
  is_next: Bool[AnyArray, "b t n+1"]
  counts: Bool[AnyArray, "b t n+1"]


@dataclasses.dataclass(frozen=True)
class PathRetrieval(Stage):
  """In each step, the next passage of the path is scored above all others.

  The loss is the binary cross-entropy of P(i | h_t) (Asai et al. 2020, section
  3.1.2). Other passages are those that the snapshot finds for the question, by
  its own query tower, and those that are linked from the path or from these.

  Attributes:
    max_hops: Number of passages of the longest path.
    num_negatives: Number of passages that the index finds, without the path's.
    num_linked: Number of linked passages.
    prefix_rate: Share of the questions whose path begins with the best found
      passage that links to it, if any does, so that a path may begin there, too.
    within_documents: Whether blocks of one document lead to each other.
  """

  max_hops: Annotated[PositiveInt, OfRun()] = 3
  num_negatives: PositiveInt = 40
  num_linked: NonNegativeInt = 10
  prefix_rate: Fraction = 0.5
  within_documents: Annotated[bool, OfRun()] = False
  evaluation = "gin/runs/eval_retrieval.gin"

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", PATH_RETRIEVER)

  @property
  def frozen(self) -> tuple[str, ...]:
    return ("retriever",)

  @property
  def retrieval(self) -> Retrieval:
    return Retrieval(
      self.num_negatives + self.max_hops,
      setting="NUM_NEGATIVES",
      num_required=1,
      current_queries=False,
    )

  @property
  def num_candidates(self) -> int:
    return self.max_hops + self.num_negatives + self.num_linked

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    corpus, size = context.corpus, len(batch.positions)
    paths = gold_paths(batch, corpus, self.max_hops)
    rows = np.full((size, self.num_candidates), NULL_ROW, np.int32)
    shape = (size, self.max_hops + 1, self.num_candidates + 1)
    is_next, counts = np.zeros(shape, bool), np.zeros(shape, bool)
    for place, path in enumerate(paths):
      if path:
        draw = np.random.default_rng(int(batch.positions[place])).random()
        own = self._passages(
          path, found.rows[place], corpus, draw < self.prefix_rate
        )
        rows[place], is_next[place], counts[place] = own
    made = PathBatch(
      batch.array("query"), context.gather(rows), is_next, counts
    )
    return made, {"has_path": float(np.mean([*map(bool, paths)]))}

  def _passages(
    self,
    path: Sequence[int],
    found: Int[np.ndarray, " s"],
    corpus: Corpus,
    with_prefix: bool,
  ) -> tuple[
    Int[np.ndarray, " n"], Bool[np.ndarray, "t n+1"], Bool[np.ndarray, "t n+1"]
  ]:
    """Returns the passages of a question, and what is learned in each step."""
    found = found[~np.isin(found, path)][: self.num_negatives]
    sources = [*path, *found.tolist()]
    targets = neighbours(corpus, sources, self.within_documents)
    prefix = None
    if len(path) < self.max_hops:
      leads = [path[0] in own for own in targets[len(path) :]]
      prefix = next(
        (r for r, is_ in zip(found, leads, strict=True) if is_), None
      )
    with_prefix &= prefix is not None
    if with_prefix:
      path = [prefix, *path]
      found = found[found != prefix]
    linked = dict.fromkeys(np.concatenate([*targets, found[:0]]).tolist())
    linked = [row for row in linked if row not in {*path, *found.tolist()}]
    others = [*found.tolist(), *linked[: self.num_linked]]
    hops, length = self.max_hops, len(path)
    limit = hops + len(others)
    rows = np.full(self.num_candidates, NULL_ROW, np.int32)
    rows[:length], rows[hops:limit] = path, others
    shape = (hops + 1, len(rows) + 1)
    is_next, counts = np.zeros(shape, bool), np.zeros(shape, bool)
    step = np.arange(length)
    is_next[step, step] = is_next[length, -1] = True
    # The path's other passages are neither right nor wrong in a step.
    counts[: length + 1, hops:limit] = counts[: length + 1, -1] = True
    counts |= is_next
    if with_prefix:
      counts[1:length, 0] = True
    elif prefix is not None:
      counts[0, hops + others.index(prefix)] = False
    return rows, is_next, counts

  def dummy_batch(self, shapes: ExampleArrays) -> PathBatch:
    size, count, _ = shapes.candidates.shape
    learned = np.zeros((size, self.max_hops + 1, count + 1), bool)
    return PathBatch(shapes.query, shapes.candidates, learned, learned)

  def inputs(self, components: Components, batch: PathBatch) -> EncoderInputs:
    read = components[PATH_RETRIEVER].join(batch.query, batch.blocks)
    return EncoderInputs(reader=read)

  def loss(
    self, encoders: Encoders, batch: PathBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the mean over all that counts; questions without a path have none.

    The metric `path_accuracy` is the share of paths that a search for the best
    passage in each step, the path's own being chosen, would follow.
    """
    logits = encoders.apply(
      PATH_RETRIEVER,
      inputs.reader,
      num_passages=batch.blocks.shape[1],
      num_hops=self.max_hops,
      method="path_logits",
    )
    is_next, counts = jnp.asarray(batch.is_next), jnp.asarray(batch.counts)
    losses = jax.nn.softplus(jnp.where(is_next, -logits, logits))
    best = jnp.argmax(jnp.where(counts, logits, -jnp.inf), axis=-1)
    is_best = jnp.take_along_axis(is_next, best[..., None], axis=-1)[..., 0]
    is_right = (is_best | ~counts.any(axis=-1)).all(axis=-1)
    accuracy = Average.of(is_right, counts.any(axis=(1, 2)))
    return WeightedLoss(Average.of(losses, counts), {"path_accuracy": accuracy})
