"""Compares a checkpoint with the served snapshot on held-out feedback."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float, Int

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.evaluation.encoding import encode_queries
from realm_jax.feedback.examples import Feedback, FeedbackExamples, total_reward
from realm_jax.models.parameters import Params
from realm_jax.objectives.feedback import ServedLists, order_log_probabilities
from realm_jax.snapshots.build import CompiledTowers
from realm_jax.snapshots.loading import Snapshot

# Maximum number of lists to compare, and the minimum for a comparison.
_MOST, _LEAST = 1000, 30
# Upper bound of the importance ratios.
_CLIP_RATIO = 10.0
_RESAMPLES = 2000


class HeldOut(NamedTuple):
  """Held-out lists, with n candidates each.

  Attributes:
    texts: Queries.
    blocks: Ids of the candidates, padded with the first one.
    lists: The lists, as inputs of a loss. If the order was drawn, `rewards` has
      the reward of the whole list.
    is_drawn: Whether the order was drawn.
  """

  texts: list[str]
  blocks: Int[np.ndarray, "b n"]
  lists: ServedLists
  is_drawn: np.ndarray


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Values of two retrievers on the same lists, and their difference.

  Attributes:
    served, new: Estimates of their mean rewards from held-out feedback.
    interval: 95 % paired bootstrap interval of new − served.
    num_lists: Number of lists.
  """

  served: float
  new: float
  interval: tuple[float, float]
  num_lists: int

  @property
  def is_worse(self) -> bool:
    """Whether the new retriever is significantly worse."""
    return self.interval[1] < 0


def compare(
  feedback_dir: epath.PathLike,
  served: Snapshot,
  towers: CompiledTowers,
  params: Params,
  *,
  query_length: int,
) -> Comparison | None:
  """Compares a checkpoint's retriever with a snapshot on the newest lists.

  On lists whose order was drawn, the value of a retriever is the mean reward,
  weighted by the ratio of the order's probability under its scores to the
  probability with which it was drawn. On other lists, it is the mean reward of
  the passages that were shown, weighted by the softmax of their scores.

  Returns:
    The comparison, or None if too few lists can be compared.
  """
  examples = FeedbackExamples(feedback_dir, "validation")
  numbers = range(max(0, len(examples) - _MOST), len(examples))
  corpora = served.corpus, towers.corpus
  lists = [examples[number] for number in numbers]
  kept = [one for one in lists if _can_be_compared(one, corpora)]
  if len(kept) < _LEAST:
    logging.info(
      "%d held-out lists of %s can be compared, and %d are needed: the "
      "snapshot is published without",
      *(len(kept), feedback_dir, _LEAST),
    )
    return None
  held_out = _held_out(kept)
  tokens, refused = encode_queries(
    towers.corpus.vocabulary, held_out.texts, query_length
  )
  assert not refused
  scale = towers.retriever.score_scale
  ids, index = np.unique(held_out.blocks, return_inverse=True)
  rows_of_served, rows = (corpus.rows_of(ids) for corpus in corpora)
  # The embedder needs rows in rising order.
  order = np.argsort(rows)
  vectors = np.empty((len(ids), towers.retriever.vector_size), np.float32)
  vectors[order] = towers.embedder.embed(params, rows[order])
  stored = served.vectors(rows_of_served)
  places = index.reshape(held_out.blocks.shape)
  values = []
  for tower, z in ((served.query_params, stored), (params, vectors)):
    queries = np.asarray(towers.embed_queries(tower, tokens))
    scores = scale * np.einsum("bd,bnd->bn", queries, z[places])
    values.append(_values(scores.astype(np.float32), held_out))
  return _compared(*values)


def _can_be_compared(feedback: Feedback, corpora: Sequence[Corpus]) -> bool:
  """Returns whether candidates are unchanged, and rewards are informative."""
  served = feedback.served
  rows_of_corpora = [corpus.rows_of(served.blocks) for corpus in corpora]
  is_same = (
    (rows != NULL_ROW) & (corpus.content_hashes[rows] == served.hashes)
    for corpus, rows in zip(corpora, rows_of_corpora, strict=True)
  )
  tells = served.temperature is not None or isinstance(feedback.rewards, list)
  return tells and all(same.all() for same in is_same)


def _held_out(kept: Sequence[Feedback]) -> HeldOut:
  """Returns lists as arrays, padded to the longest."""
  is_drawn = np.array([one.served.temperature is not None for one in kept])
  rewards = [
    np.full(len(one.served.shown), total_reward(one.rewards))
    if drawn
    else np.array(one.rewards)
    for one, drawn in zip(kept, is_drawn, strict=True)
  ]
  sizes = np.array([len(one.served.blocks) for one in kept], int)

  def joined(arrays: Iterable[np.ndarray], fill: int = 0) -> np.ndarray:
    rows = [*arrays]
    longest = max(map(len, rows), default=1)
    return np.array(
      [np.pad(x, (0, longest - len(x)), constant_values=fill) for x in rows]
    )

  blocks = joined(one.served.blocks for one in kept)
  is_block = np.arange(blocks.shape[-1])[None] < sizes[:, None]
  blocks = np.where(is_block, blocks, blocks[:, :1])
  of_lists = joined(rewards).astype(np.float32)
  lists = ServedLists(
    is_block,
    joined(one.served.scores for one in kept).astype(np.float32),
    joined((one.served.shown for one in kept), -1).astype(np.int32),
    np.array([one.served.temperature or 1.0 for one in kept], np.float32),
    *(of_lists, of_lists, np.ones(len(kept), np.float32)),
  )
  return HeldOut([one.served.query for one in kept], blocks, lists, is_drawn)


def _values(
  scores: Float[np.ndarray, "b n"], held_out: HeldOut
) -> Float[np.ndarray, "b 2"]:
  """Returns each list's weight and value under a retriever's scores."""
  lists = held_out.lists
  change = np.asarray(
    order_log_probabilities(scores, lists).sum(axis=1)
    - order_log_probabilities(lists.scores, lists).sum(axis=1)
  )
  ratios = np.exp(np.minimum(change, np.log(_CLIP_RATIO)))
  ratios = np.where(held_out.is_drawn, ratios, 1.0)
  shown_scores = np.take_along_axis(scores, np.maximum(lists.shown, 0), axis=1)
  shown_scores = np.where(lists.shown >= 0, shown_scores, -np.inf)
  shares = np.exp(shown_scores - shown_scores.max(axis=1, keepdims=True))
  shares /= shares.sum(axis=1, keepdims=True)
  expected = (shares * lists.rewards).sum(axis=1)
  return np.stack([ratios, expected], axis=1)


def _compared(
  served: Float[np.ndarray, "b 2"], new: Float[np.ndarray, "b 2"]
) -> Comparison:
  """Compares weighted means; the interval is from resampled lists."""

  def mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    weights = counts * values[:, 0]
    return weights @ values[:, 1] / weights.sum(axis=-1)

  count, rng = len(served), np.random.default_rng(0)
  drawn = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
  differences = mean(new, drawn) - mean(served, drawn)
  low, high = np.quantile(differences, (0.025, 0.975)).tolist()
  once = np.ones(count)
  return Comparison(
    float(mean(served, once)), float(mean(new, once)), (low, high), count
  )
