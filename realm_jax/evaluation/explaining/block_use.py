"""Which blocks of Z a run leans on while it learns from the sentences of X."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from realm_jax.console import Progress
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.evaluation.explaining import programs
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.marginal import marginalize
from realm_jax.evaluation.explaining.sentences import (
  KnownSentences,
  draw_sentences,
)
from realm_jax.evaluation.explaining.trained_heads import require_masked_lm_head
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.loading import Generation
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import sharding
from realm_jax.training.encoder_rows import with_null, without_source
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class UsedBlock:
  """How the sample used one block.

  Attributes:
    block: Name, `document id:ordinal`.
    block_id: Stable id.
    title: Title of its document.
    times: Number of sentences of which it was a candidate.
    mean_probability: Mean p(z|x) of these.
    mean_utility: Mean log p(y|z,x) − log p(y|null,x) of these.
    mean_reward: Mean r(z) of these, by which a gradient would raise f(x,z).
  """

  block: str
  block_id: int
  title: str
  times: int
  mean_probability: float
  mean_utility: float
  mean_reward: float


@dataclasses.dataclass(frozen=True)
class BlockUse:
  """Which blocks a sample of the training sentences retrieves.

  Training keeps no counts: the sentences are searched afresh, with one
  checkpoint and its generation. A larger sample retrieves more of the blocks.

  Attributes:
    model_dir: Directory of the run.
    checkpoint: Step of the checkpoint.
    generation: Generation that was searched.
    num_sampled: Number of sentences of the sample.
    num_candidates: Number of candidates of each, the null block included.
    num_blocks: Number of blocks of the corpus.
    num_retrieved: Number of different blocks that were retrieved.
    half_of_retrievals: Number of blocks that make up half of all retrievals:
      the smaller, the fewer blocks the run leans on.
    null_probability: Mean p(null|x).
    most_retrieved: Blocks that were retrieved most often.
    min_times: Number of retrievals from which on a mean utility counts.
    most_useful: Blocks of the highest mean utility, of those that were
      retrieved at least `min_times`.
    never_retrieved: Names of the first blocks that were not retrieved.
  """

  model_dir: str
  checkpoint: int
  generation: int
  num_sentences: int
  num_candidates: int
  num_blocks: int
  num_retrieved: int
  half_of_retrievals: int
  null_probability: float
  most_retrieved: Sequence[UsedBlock]
  min_times: int
  most_useful: Sequence[UsedBlock]
  never_retrieved: Sequence[str]

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


def count_block_use(
  *,
  source: ModelSource,
  data: DataConfig,
  num_sampled: int = 1024,
  num_candidates: int = 8,
  num_shown: int = 10,
  min_times: int = 3,
) -> BlockUse:
  """Counts the blocks that a sample of the training sentences retrieves.

  The candidates are those of training: the null block and the blocks that the
  generation's query tower finds, without the sentence's own block.

  Args:
    source: Run of pre-training.
    data: Task of the masked sentences.
    num_sentences: Number of sentences of the sample.
    num_candidates: Number of candidates, the null block included.
    num_shown: Number of blocks of each list.
    min_times: Number of retrievals from which on a block's mean utility counts.

  Raises:
    ExplanationError: The run has no masked-LM head, or a number is too small.
    CheckpointError: The checkpoint is missing or does not fit.
    GenerationError: The generation is missing, damaged or of another corpus.
  """
  if num_candidates < 2 or num_shown < 1:
    raise ExplanationError(
      f"num_candidates={num_candidates}, num_shown={num_shown}; want 2 and 1, "
      "or more: change NUM_CANDIDATES or NUM_SHOWN"
    )
  model = load_model(source, Pretraining())
  require_masked_lm_head(model)
  generation = open_generation(model)
  counts = _Counts(generation.corpus)
  sample = _Sample(model, generation, num_candidates)
  words = model.corpus.vocabulary
  with Progress("sentences", total=num_sampled) as progress:
    for known in draw_sentences(data, num_sampled, words):
      counts.add(*sample.of(known))
      progress.advance(len(known))
  return BlockUse(
    model_dir=str(model.model_dir),
    checkpoint=model.step,
    generation=generation.step,
    num_sentences=num_sampled,
    num_candidates=num_candidates,
    **counts.summary(num_shown, min_times),
  )


class _Sample:
  """Finds the candidates of sentences, and what each adds."""

  def __init__(
    self, model: TrainedModel, generation: Generation, num_candidates: int
  ):
    self._model, self._corpus = model, generation.corpus
    self._num_kept = num_candidates - 1
    self._ranker = BlockRanker(
      model,
      generation,
      num_searched=num_candidates + Pretraining.num_spare,
      current_queries=False,
    )
    models, mesh = model.models, model.mesh
    self._score, self._read = (
      sharding.jit_on_mesh(
        program, model, mesh=mesh, out_shardings=sharding.batch_sharding(mesh)
      )
      for program, model in (
        (programs.score_candidates, models.retriever),
        (programs.target_log_probs, models.require_reader()),
      )
    )

  def of(
    self, known: KnownSentences
  ) -> tuple[
    Int[np.ndarray, "n k"], Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]
  ]:
    """Returns rows of candidates, f(x,z) and log p(y|z,x), the null first."""
    found = self._ranker.search(known.query)
    hashes = self._corpus.content_hashes[found.rows]
    is_source = hashes == known.source_hashes[:, None]
    kept = without_source(found.rows, is_source, num_kept=self._num_kept)
    rows = np.asarray(with_null(kept))
    length = self._model.source.block_length
    batch = sharding.to_devices(
      {
        "query": known.query,
        "candidates": self._corpus.gather(rows, length),
        "positions": known.positions,
        "targets": known.targets,
      },
      self._model.mesh,
    )
    params = self._model.params
    by_token = np.asarray(self._read(params["reader"], **batch), np.float64)
    pair = {name: batch[name] for name in ("query", "candidates")}
    scores = np.asarray(self._score(params["retriever"], **pair), np.float64)
    sums = (by_token * known.weights[:, None]).sum(axis=-1)
    num = len(known)
    return rows[:num], scores[:num], sums[:num]


class _Counts:
  """Sums over the sentences, for each block of a corpus."""

  def __init__(self, corpus: Corpus):
    self._corpus = corpus
    self._times = np.zeros(corpus.num_blocks, np.int64)
    self._probability, self._utility, self._reward = np.zeros(
      (3, corpus.num_blocks)
    )
    self._null_probabilities: list[float] = []

  def add(
    self,
    rows: Int[np.ndarray, "n k"],
    scores: Float[np.ndarray, "n k"],
    log_likelihoods: Float[np.ndarray, "n k"],
  ) -> None:
    """Adds sentences with their candidates, of which the first is null."""
    for own_rows, own_scores, own in zip(
      rows, scores, log_likelihoods, strict=True
    ):
      rewards = marginalize(own_scores, own).rewards
      assert rewards is not None
      prior = softmax(own_scores)
      self._null_probabilities.append(float(prior[own_rows == NULL_ROW].sum()))
      is_block = own_rows != NULL_ROW
      found = own_rows[is_block]
      # A sentence has each block once.
      self._times[found] += 1
      self._probability[found] += prior[is_block]
      self._utility[found] += own[is_block] - own[0]
      self._reward[found] += rewards[is_block]

  def summary(self, num_shown: int, min_times: int) -> dict[str, Any]:
    """Returns the fields of `BlockUse` that are counted."""
    times = self._times
    retrieved = np.flatnonzero(times)
    by_times = retrieved[np.argsort(-times[retrieved], kind="stable")]
    often = by_times[times[by_times] >= min_times]
    utility = self._utility[often] / times[often]
    by_utility = often[np.argsort(-utility, kind="stable")]
    total = np.cumsum(times[by_times])
    half = np.searchsorted(total, total[-1] / 2) + 1 if total.size else 0
    never = np.flatnonzero(times == 0)[:num_shown].tolist()
    return {
      "num_blocks": len(times),
      "num_retrieved": len(retrieved),
      "half_of_retrievals": int(half),
      "null_probability": float(np.mean(self._null_probabilities)),
      "most_retrieved": self._described(by_times[:num_shown].tolist()),
      "min_times": min_times,
      "most_useful": self._described(by_utility[:num_shown].tolist()),
      "never_retrieved": [self._corpus.block(row).name for row in never],
    }

  def _described(self, rows: Iterable[int]) -> list[UsedBlock]:
    corpus = self._corpus
    return [
      UsedBlock(
        corpus.block(row).name,
        int(corpus.block_ids[row]),
        corpus.block(row).title,
        int(self._times[row]),
        float(self._probability[row] / self._times[row]),
        float(self._utility[row] / self._times[row]),
        float(self._reward[row] / self._times[row]),
      )
      for row in rows
    ]
