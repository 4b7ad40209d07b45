"""REALM pre-training: masked words, the null block and retrieved blocks."""

import dataclasses
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt32

from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.sequences import PAD_ID
from realm_jax.objectives.masked_lm import OBJECTIVES, require_objective
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import (
  NonNegativeFloat,
  NonNegativeInt,
  OfRun,
  PositiveFloat,
  PositiveInt,
)
from realm_jax.training import encoder_inputs
from realm_jax.training.encoder_inputs import (
  Candidates,
  EncoderInputs,
  to_words,
)
from realm_jax.training.retrieval import Retrieval, take_candidates
from realm_jax.training.stages import masked_words
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class PretrainingBatch(NamedTuple):
  """Masked sentences with their candidates, unless the step retrieves them.

  Attributes:
    query: Masked sentences.
    candidates: The null block and the retrieved blocks; None if the step
      retrieves them.
    masks: Masked tokens that are scored.
    source_hash: Content hash of each sentence's block, in two words, if the
      step retrieves the candidates.
  """

  query: Int[AnyArray, "b q"]
  candidates: Candidates | None
  masks: MaskTargets
  source_hash: UInt32[AnyArray, "b 2"] | None = None


@dataclasses.dataclass(frozen=True)
class Pretraining(Stage):
  """REALM's pre-training on masked sentences, with retrieved blocks.

  Attributes:
    num_candidates: Number of candidates, including the null block. With only
      the null block (closed book), nothing is searched and no index is needed.
    rerank_depth: Number of retrieved blocks from which a frozen cross-encoder,
      the component `reranker` of the initial checkpoint, selects the
      candidates. It decides what is read, but p(z|x) remains the retriever's.
      0 disables reranking.
    num_spare: Number of blocks to search in addition to the candidates and the
      source, so that verbatim copies of the source can also be dropped.
    objective: Objective of the retriever: `marginal` likelihood, `emdr2`,
      `leave_one_out`, `perplexity` or `replug`, or one that a user's module has
      added to `realm_jax.objectives.masked_lm.OBJECTIVES`.
    loss_form: Form of the marginal loss, `per_token` or `joint`.
    target_temperature: Temperature of the target of p(z|x): τ in
      `leave_one_out` and `perplexity`, and β in `replug`. None takes the
      paper's value.
    freeze_reader: Whether the reader is frozen, without dropout.
    null_block: Whether the first candidate is the null block (section 3.4).
    drop_source: Whether a sentence's own block, which would be trivial to
      retrieve, and its verbatim copies are excluded (section 3.4).
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower (as released).
    read_gold: Whether searched blocks with the masked words are preferred as
      candidates. This teaches a reader with random initial weights to use
      retrieved blocks before the retriever is trained (FREEZE_RETRIEVER_STEPS).
    span_weight: Weight of an additional loss, for pointing at the masked words
      in the candidates. In either form, it is divided by the same number as the
      loss of filling in the words. The paper does not have this loss.
  """

  num_candidates: Annotated[PositiveInt, OfRun()] = 8
  rerank_depth: Annotated[NonNegativeInt, OfRun()] = 0
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  objective: Annotated[str, OfRun()] = "marginal"
  loss_form: Annotated[Literal["per_token", "joint"], OfRun()] = "per_token"
  target_temperature: Annotated[PositiveFloat | None, OfRun()] = None
  freeze_reader: bool = False
  current_queries: bool = False
  null_block: Annotated[bool, OfRun()] = True
  drop_source: Annotated[bool, OfRun()] = True
  read_gold: bool = False
  span_weight: NonNegativeFloat = 0.0
  asked = "masked sentence"
  evaluation = "gin/runs/eval_masked.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    objective = require_objective(
      self.objective,
      num_candidates=self.num_candidates,
      temperature=self.target_temperature,
    )
    if objective.target not in (None, "likelihood"):
      raise RealmError(
        f"OBJECTIVE={self.objective!r} learns from the attention of a reader "
        "that reads all candidates at once, but this stage's reader does not; "
        "choose another objective, or the stage of gin/runs/text_to_text.gin"
      )
    if self.freeze_reader and self.span_weight:
      raise RealmError(
        f"span_weight={self.span_weight} trains only the reader, but "
        "freeze_reader=True freezes it; set SPAN_WEIGHT = 0 or FREEZE_READER = "
        "False"
      )

    if self.rerank_depth and not 0 < self._num_read <= self.rerank_depth:
      raise RealmError(
        f"RERANK_DEPTH={self.rerank_depth} with NUM_CANDIDATES="
        f"{self.num_candidates}: the cross-encoder must order at least the "
        "blocks that are read; raise RERANK_DEPTH, or set it to 0"
      )
    if self.rerank_depth and self.read_gold:
      raise RealmError(
        f"RERANK_DEPTH={self.rerank_depth} with READ_GOLD = True: the "
        "cross-encoder would choose again among the blocks with the masked "
        "words; set one of them"
      )

  @property
  def components(self) -> tuple[str, ...]:
    reranker = (RERANKER,) if self.rerank_depth else ()
    return (*super().components, *reranker)

  @property
  def frozen(self) -> tuple[str, ...]:
    reader = ("reader",) if self.freeze_reader else ()
    return (*reader, RERANKER) if self.rerank_depth else reader

  @property
  def _num_read(self) -> int:
    """Number of retrieved blocks that are read."""
    return self.num_candidates - self.null_block

  @property
  def retrieval(self) -> Retrieval | None:
    if not self._num_read:
      return None
    return Retrieval(
      self.rerank_depth or self._num_read,
      setting="RERANK_DEPTH" if self.rerank_depth else "NUM_CANDIDATES",
      num_spare=self.num_spare,
      drop_source=self.drop_source,
      null_block=self.null_block,
      current_queries=self.current_queries,
      # A compiled step does not look for masked words in the blocks.
      in_step=not self.read_gold,
    )

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    query, masks = batch.arrays["query"], MaskTargets.of(batch)
    if found is not None:
      rows = self.candidate_rows(batch, found.rows, context)
    elif self.retrieval is None:
      rows = np.full((len(query), 1), NULL_ROW)
    else:
      words = to_words(batch.array("source_hash"))
      return PretrainingBatch(query, None, masks, source_hash=words), {}
    candidates = Candidates.of(context.gather(rows))
    return PretrainingBatch(query, candidates, masks), {}

  def candidate_rows(
    self, batch: Batch, rows: Int[np.ndarray, "b n"], context: StageContext
  ) -> Int[np.ndarray, "b k"]:
    """Selects the candidates among the searched blocks; returns their rows."""
    assert self.retrieval is not None
    has_words = None
    if self.read_gold:
      has_words = masked_words.has_masked_words(batch, rows, context.corpus)
    return context.candidate_rows(self.retrieval, batch, rows, has_words)

  def dummy_batch(self, shapes: ExampleArrays) -> PretrainingBatch:
    tokens = shapes.candidates
    more = max(0, self.rerank_depth - self._num_read)
    tokens = np.pad(tokens, ((0, 0), (0, more), (0, 0)), mode="edge")
    masks = MaskTargets.none(shapes)
    return PretrainingBatch(shapes.query, Candidates.of(tokens), masks)

  def rerank(
    self, encoders: Encoders, batch: PretrainingBatch
  ) -> PretrainingBatch:
    """Selects the null block and the best blocks by the cross-encoder."""
    if not self.rerank_depth:
      return batch
    assert batch.candidates is not None
    first = int(self.null_block)
    tokens = jnp.asarray(batch.candidates.tokens)[:, first:]
    scores = encoders.pair_scores(batch.query, tokens, at_once=self._num_read)
    # Null blocks fill up the candidates if too many were dropped.
    is_block = (tokens != PAD_ID).sum(axis=-1) > NUM_SPECIAL_TOKENS
    scores = jnp.where(is_block, scores, -jnp.inf)
    best = first + jax.lax.top_k(scores, self._num_read)[1]
    indices = jnp.pad(best, ((0, 0), (first, 0)))
    return batch._replace(candidates=take_candidates(batch.candidates, indices))

  def inputs(
    self, components: Components, batch: PretrainingBatch
  ) -> EncoderInputs:
    candidates = batch.candidates
    assert candidates is not None
    # By now they are reranked, except when only lengths are needed.
    candidates = jax.tree.map(lambda x: x[:, : self.num_candidates], candidates)
    inputs = encoder_inputs.retriever_inputs(
      components.retriever, batch.query, candidates
    )
    read = components.token_reader.join(
      batch.query, candidates.tokens, batch.masks.token_ids
    )
    return inputs._replace(reader=read)

  def loss(
    self, encoders: Encoders, batch: PretrainingBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the loss of the objective, by default REALM's (section 3.1).

    Queries and candidates are embedded with the current parameters. The metric
    `recall` is the share of queries for which a retrieved block has the masked
    words.
    """
    assert batch.candidates is not None
    tokens = batch.candidates.tokens
    objective = OBJECTIVES[self.objective]
    scores = encoders.candidate_scores(inputs)
    weighted = masked_words.loss_given_blocks(
      encoders,
      batch.masks,
      tokens,
      inputs.reader,
      block_scores=scores,
      has_null=self.null_block,
      span_weight=self.span_weight,
      objective=objective.of(self.loss_form, self.target_temperature),
      has_target=objective.has_target,
    )
    retrieved = tokens[:, int(self.null_block) :]
    has_words = masked_words.occurrences(batch.masks, retrieved)
    recall = Average.of(jnp.asarray(has_words).any(axis=(1, 2)))
    return weighted._replace(metrics={**weighted.metrics, "recall": recall})
