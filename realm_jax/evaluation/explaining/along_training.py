"""How the best block of fixed sentences changes along a run of pre-training."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float, Int
from scipy.special import softmax

from realm_jax.checkpoints.loop_item import recorded_generation
from realm_jax.checkpoints.manager import (
  CheckpointError,
  CheckpointStore,
  locate,
)
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.evaluation.explaining import programs
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.masked_text import MaskLimits
from realm_jax.evaluation.explaining.sentences import (
  KnownSentences,
  draw_sentences,
  read_sentences,
)
from realm_jax.evaluation.explaining.trained_heads import require_masked_lm_head
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.follow.loading import Generation, load_generation
from realm_jax.generations.store import layout
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import rules
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.retrieval.candidate_rows import without_source
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class TopBlock:
  """The best block of one sentence at one point of the run.

  Attributes:
    block: Name, `document id:ordinal`.
    block_id: Stable id.
    title: Title of its document.
    probability: p(z|x) over the retrieved blocks, without the null block.
    utility: log p(y|z,x) − log p(y|null,x).
    changed: Whether another block was the best at the point before; None at
      the first.
  """

  block: str
  block_id: int
  title: str
  probability: float
  utility: float
  changed: bool | None


@dataclasses.dataclass(frozen=True)
class Point:
  """What a generation, or a checkpoint without one of its own, retrieves.

  Attributes:
    step: Step of the generation, or of the checkpoint.
    generation: Generation whose vectors are searched.
    query_tower: "generation" if queries are embedded by the tower that the
      generation was published with; "checkpoint" if by that of a kept
      checkpoint, which has no generation of its own.
    reader_step: Checkpoint whose reader computes the utility: that of `step`
      where it is kept, or else the newest.
    tops: Best block of each sentence.
  """

  step: int
  generation: int
  query_tower: str
  reader_step: int
  tops: Sequence[TopBlock]

  @property
  def share_changed(self) -> float | None:
    """Share of sentences whose best block is another than before."""
    changed = [top.changed for top in self.tops if top.changed is not None]
    return float(np.mean(changed)) if changed else None


@dataclasses.dataclass(frozen=True)
class AlongTraining:
  """Fixed sentences along a run.

  Attributes:
    model_dir: Directory of the run.
    sentences: Sentences with [MASK].
    answers: Words behind the masks.
    points: Points of the run, by step.
  """

  model_dir: str
  sentences: Sequence[str]
  answers: Sequence[str]
  points: Sequence[Point]

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class _Plan:
  """A point before it is computed; see `Point`."""

  step: int
  generation: int
  has_generation: bool
  reader_step: int


def follow_sentences(
  *,
  source: ModelSource,
  data: DataConfig,
  num_sentences: int = 8,
  num_candidates: int = 8,
  sentences: epath.PathLike | None = None,
) -> AlongTraining:
  """Follows sentences through the generations and checkpoints of a run.

  Every generation that stands holds its own query tower, so that its best
  block and p(z|x) are its own. A checkpoint that is kept and has no generation
  searches the one that was in use. The utility needs a reader, which a
  generation does not have: see `Point.reader_step`.

  Args:
    source: Run of pre-training; its checkpoint has the reader that stands in
      where no other is kept.
    data: Task that sentences are drawn from, if none are given.
    num_sentences: Number of sentences to draw.
    num_candidates: Number of candidates, the null block included.
    sentences: JSON Lines of `{"sentence": …, "answer": …}`.

  Raises:
    ExplanationError: No generation stands, the run has no masked-LM head, or a
      sentence does not fit.
    CheckpointError: The checkpoint of `source` is missing or does not fit.
  """
  if num_candidates < 2:
    raise ExplanationError(
      f"num_candidates={num_candidates}; want 2 or more, the null block and a "
      "block: change NUM_CANDIDATES"
    )
  store, _ = locate(source.model_dir)
  with contextlib.closing(store):
    _published(store.directory.parent / layout.FOLDER)
  newest = load_model(source, Pretraining())
  require_masked_lm_head(newest)
  words = newest.corpus.vocabulary
  limits = MaskLimits(source.query_length, data.max_masks)
  if sentences is None:
    known = list(draw_sentences(data, num_sentences, words))
  else:
    known = read_sentences(sentences, words, limits, batch_size=data.batch_size)
  points: list[Point] = []
  for plan, model, generation in _opened(newest, source):
    before = points[-1].tops if points else None
    tops = [
      top
      for batch in known
      for top in _best_blocks(plan, model, generation, batch, num_candidates)
    ]
    points.append(_point(plan, tops, before))
  return AlongTraining(
    str(newest.model_dir),
    [text for batch in known for text in batch.texts],
    [answer for batch in known for answer in batch.answers],
    points,
  )


def _opened(
  newest: TrainedModel, source: ModelSource
) -> Iterator[tuple[_Plan, TrainedModel, Generation]]:
  """Yields the points in order, holding one generation and model at a time.

  What a run that goes on has removed meanwhile is left out.
  """
  generations_dir = newest.model_dir / layout.FOLDER
  generation, model = None, newest
  for plan in _plans(newest, _published(generations_dir)):
    try:
      if plan.reader_step != model.step:
        model = newest  # Memory of the last one is free before the next.
        model = _reader_of(plan.reader_step, newest, source)
      if generation is None or generation.step != plan.generation:
        generation = None  # Likewise.
        generation = load_generation(
          generations_dir,
          plan.generation,
          corpus=newest.corpus,
          mesh=newest.mesh,
        )
    except (CheckpointError, GenerationError) as error:
      logging.warning("step %d is left out: %s", plan.step, error)
      continue
    yield plan, model, generation


def _published(generations_dir: epath.Path) -> list[int]:
  """Returns the steps of the generations that stand.

  Raises:
    ExplanationError: There are none.
  """
  steps = layout.published_steps(generations_dir)
  if not steps:
    raise ExplanationError(
      f"no generation stands in {generations_dir}; build the newest "
      "checkpoint's with `python -m realm_jax.build_index --once`"
    )
  return steps


def _reader_of(
  step: int, newest: TrainedModel, source: ModelSource
) -> TrainedModel:
  if step == newest.step:
    return newest
  own = dataclasses.replace(
    source, model_dir=newest.model_dir, checkpoint_step=step
  )
  return load_model(own, Pretraining())


def _plans(newest: TrainedModel, published: Sequence[int]) -> list[_Plan]:
  """Returns the points of a run, by step."""
  with contextlib.closing(CheckpointStore(newest.model_dir)) as store:
    kept = store.steps()
    in_use = {
      step: recorded_generation(store.restore(step, items=("loop",))["loop"])
      for step in kept
      if step not in published and "loop" in store.items(step)
    }
  plans = [
    _Plan(step, step, True, step if step in kept else newest.step)
    for step in published
  ]
  plans += [
    _Plan(step, generation, False, step)
    for step, generation in in_use.items()
    if generation is not None and generation in published
  ]
  return sorted(plans, key=lambda plan: plan.step)


def _point(
  plan: _Plan, tops: Sequence[TopBlock], before: Sequence[TopBlock] | None
) -> Point:
  """Returns a point, whose blocks are compared with those before."""
  if before is not None:
    tops = [
      dataclasses.replace(top, changed=top.block_id != old.block_id)
      for top, old in zip(tops, before, strict=True)
    ]
  tower = "generation" if plan.has_generation else "checkpoint"
  return Point(plan.step, plan.generation, tower, plan.reader_step, tops)


def _best_blocks(
  plan: _Plan,
  model: TrainedModel,
  generation: Generation,
  known: KnownSentences,
  num_candidates: int,
) -> list[TopBlock]:
  """Returns the best block of each sentence of a batch."""
  ranker = BlockRanker(
    model,
    generation,
    # Those of training, whose source and copies are then left out.
    num_searched=num_candidates + Pretraining.num_spare,
    current_queries=not plan.has_generation,
  )
  ranking, corpus = ranker.rank(known.query), generation.corpus
  hashes = corpus.content_hashes[ranking.rows]
  is_source = hashes == known.source_hashes[:, None]
  num_kept = num_candidates - 1
  rows = without_source(ranking.rows, is_source, num_kept=num_kept)
  best = np.asarray(rows)[:, 0]
  utilities = _utilities(model, corpus, known, best)
  tops = []
  for i, row in enumerate(best[: len(known)].tolist()):
    if row == NULL_ROW:
      raise ExplanationError(
        f"all blocks found for {known.texts[i]!r} are copies of its own; raise "
        "NUM_CANDIDATES"
      )
    others = ranking.scores[i][~is_source[i]][:num_kept]
    tops.append(
      TopBlock(
        corpus.block_name(row),
        int(corpus.block_ids[row]),
        corpus.title(row),
        float(softmax(np.float64(others))[0]),
        float(utilities[i]),
        None,
      )
    )
  return tops


def _utilities(
  model: TrainedModel,
  corpus: Corpus,
  known: KnownSentences,
  rows: Int[np.ndarray, " b"],
) -> Float[np.ndarray, " b"]:
  """Returns log p(y|z,x) − log p(y|null,x) of one block a sentence."""
  read = rules.on_mesh(
    shared_partial(programs.target_log_probs, model.models.require_reader()),
    model.mesh,
    out_shardings=rules.batch_sharding(model.mesh),
  )
  pairs = np.stack([np.full_like(rows, NULL_ROW), rows], axis=1)
  batch = rules.to_devices(
    {
      "query": known.query,
      "candidates": corpus.gather(pairs, model.source.block_length),
      "positions": known.positions,
      "targets": known.targets,
    },
    model.mesh,
  )
  by_token = np.asarray(read(model.params["reader"], **batch), np.float64)
  null, own = np.moveaxis((by_token * known.weights[:, None]).sum(-1), 1, 0)
  return own - null
