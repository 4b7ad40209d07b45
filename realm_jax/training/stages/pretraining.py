"""REALM pre-training: masked words, the null block and retrieved blocks."""

import dataclasses
import functools
from typing import Annotated, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.packing import TokenSequences
from realm_jax.models.retriever import relevance
from realm_jax.objectives.masked_lm import OBJECTIVES, WITH_TARGET
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
from realm_jax.training.stages import masked_words
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.stage import (
  Assembled,
  Encoders,
  ExampleArrays,
  Models,
  Stage,
  StageContext,
)


class PretrainingBatch(NamedTuple):
  """Masked sentences with their candidates, unless the step retrieves these.

  Attributes:
    candidates: The null block and the retrieved blocks; None where the step
      finds them.
    source_hash: Content hash of each sentence's block, in two words, where the
      step finds the candidates.
  """

  query: Int[AnyArray, "b q"]
  candidates: Candidates | None
  masks: MaskTargets
  source_hash: UInt32[AnyArray, "b 2"] | None = None


@dataclasses.dataclass(frozen=True)
class Pretraining(Stage):
  """A masked sentence, the null block and the blocks that the index retrieves.

  Attributes:
    num_candidates: Number of candidates, the null block included. With the null
      block alone (closed book), nothing is searched, and no index is needed.
    num_spare: Number of blocks that are searched beside the candidates and the
      source, so that verbatim copies of the source can be dropped, too.
    objective: What the retriever learns from: `marginal` likelihood, `emdr2`,
      `leave_one_out`, `perplexity` or `replug`. Each is a function in
      `realm_jax/objectives`.
    loss_form: Form of the marginal loss, `per_token` or `joint`.
    target_temperature: Temperature of the target of p(z|x), τ of
      `leave_one_out` and `perplexity` and β of `replug`. None is the paper's.
    freeze_reader: Whether the reader stays as it is, and has no dropout.
    null_block: Whether the first candidate is the null block (section 3.4).
    drop_source: Whether the block that a sentence is from, whose retrieval
      would be trivial, and its verbatim copies are no candidates (section 3.4).
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower (as released).
    read_gold: Whether candidates are taken first, of the searched blocks, from
      those that have the masked words. A reader with random initial weights
      learns from them to read what a retriever finds, before the retriever is
      trained (FREEZE_RETRIEVER_STEPS).
    span_weight: Weight of an example's loss of pointing at the masked words in
      its candidates. In either form it is added to the loss of filling them in,
      and divided by the same number. The paper has none.
  """

  num_candidates: Annotated[PositiveInt, OfRun()] = 8
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  objective: Annotated[
    Literal["marginal", "emdr2", "leave_one_out", "perplexity", "replug"],
    OfRun(),
  ] = "marginal"
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
    has_target = self.objective in WITH_TARGET
    if self.target_temperature is not None and not has_target:
      raise RealmError(
        f"target_temperature={self.target_temperature}: the objective "
        f"{self.objective!r} has no target; leave TARGET_TEMPERATURE out, or "
        f"choose an OBJECTIVE of {WITH_TARGET}"
      )
    if self.objective == "leave_one_out" and self.num_candidates < 2:
      raise RealmError(
        "the objective 'leave_one_out' compares candidates; raise "
        f"NUM_CANDIDATES={self.num_candidates} to 2 or more"
      )
    if self.freeze_reader and self.span_weight:
      raise RealmError(
        f"span_weight={self.span_weight} trains the reader alone, which "
        "freeze_reader=True freezes; set SPAN_WEIGHT = 0 or FREEZE_READER = "
        "False"
      )

  @property
  def frozen(self) -> tuple[str, ...]:
    return ("reader",) if self.freeze_reader else ()

  @property
  def needs_index(self) -> bool:
    return self._num_retrieved > 0

  @property
  def retrieves_on_device(self) -> bool:
    # The compiled program has no switches for the ablations of candidates, and
    # does not look for masked words in them.
    is_usual = self.null_block and self.drop_source and not self.read_gold
    return is_usual and self.needs_index

  def num_searched(self, num_blocks: int) -> int:
    if not self.needs_index:
      return 0
    # The source is searched for, too, where it is then dropped.
    needed = self._num_retrieved + self.drop_source
    if needed > num_blocks:
      raise RealmError(
        f"num_candidates={self.num_candidates} needs {needed} blocks (the null "
        "block is none of them, and the source's, which is dropped, one), but "
        f"the corpus has {num_blocks}; lower NUM_CANDIDATES"
      )
    spare = self.num_spare if self.drop_source else 0
    return min(needed + spare, num_blocks)

  @property
  def _num_retrieved(self) -> int:
    """Number of candidates that are not the null block."""
    return self.num_candidates - self.null_block

  def candidate_rows(
    self, batch: Batch, rows: Int[np.ndarray, "b n"], corpus: Corpus
  ) -> Int[np.ndarray, "b k"]:
    """Chooses the candidates of each query among the blocks that were found.

    The source and its verbatim copies are known by their hashes, in whichever
    corpus they are. Where they leave too few blocks, the null block fills up.

    Args:
      batch: Examples of the task.
      rows: `num_searched` blocks for each query, best first.
      corpus: Corpus that was searched.

    Returns:
      Rows of the candidates, the null block first if it is one of them.
    """
    hashes = corpus.content_hashes[rows]
    is_source = hashes == batch.array("source_hash")[:, None]
    if self.read_gold:
      blocks = corpus.gather(rows, int(corpus.lengths.max()))
      has_words = masked_words.occurrences(MaskTargets.of(batch), blocks)
      has_words = np.asarray(has_words).any(axis=2)
      order = np.argsort(~has_words, axis=1, kind="stable")
      rows = np.take_along_axis(rows, order, axis=1)
      is_source = np.take_along_axis(is_source, order, axis=1)
    kept = encoder_inputs.without_source(
      rows, is_source & self.drop_source, num_kept=self._num_retrieved
    )
    return np.asarray(
      encoder_inputs.with_null(kept) if self.null_block else kept
    )

  def assemble(
    self, batch: Batch, retrieved: SearchResult | None, context: StageContext
  ) -> Assembled:
    query, masks = batch.arrays["query"], MaskTargets.of(batch)
    if retrieved is not None:
      rows = self.candidate_rows(batch, retrieved.rows, context.corpus)
    elif self.needs_index:
      words = to_words(batch.array("source_hash"))
      return PretrainingBatch(query, None, masks, source_hash=words), {}
    else:
      rows = np.full((len(query), 1), NULL_ROW)
    tokens = context.gather(rows)
    candidates = Candidates.of(tokens)
    return PretrainingBatch(query, candidates, masks), {}

  def dummy_batch(self, shapes: ExampleArrays) -> PretrainingBatch:
    tokens = shapes.candidates
    candidates = Candidates.of(tokens)
    masks = MaskTargets.none(shapes)
    return PretrainingBatch(shapes.query, candidates, masks)

  def inputs(self, models: Models, batch: PretrainingBatch) -> EncoderInputs:
    retriever, reader = models.retriever, models.require_reader()
    candidates = batch.candidates
    assert candidates is not None
    blocks, index = encoder_inputs.distinct_blocks(retriever, candidates)
    joint = encoder_inputs.joint_inputs(reader, batch.query, candidates.tokens)
    queries = TokenSequences(retriever.query_input(batch.query))
    return joint._replace(queries=queries, blocks=blocks, block_index=index)

  def loss(
    self, encoders: Encoders, batch: PretrainingBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the objective, by default REALM's (section 3.1).

    Queries and candidates are embedded with the current parameters. The metric
    `recall` is the share of queries whose masked words a retrieved block has.
    """
    assert batch.candidates is not None
    tokens = batch.candidates.tokens
    if self.freeze_reader:
      encoders = encoders.frozen("reader")
    queries, blocks = encoders.apply("retriever", inputs.queries, inputs.blocks)
    # A device's candidates are among its own blocks.
    index, dim = jnp.asarray(inputs.block_index), blocks.shape[-1]
    candidates = jnp.take_along_axis(
      blocks.reshape(len(index), -1, dim), index[..., None], axis=1
    )
    candidates = candidates.reshape(len(queries), -1, dim)
    scale = encoders.models.retriever.score_scale
    settings: dict[str, Any] = {"form": self.loss_form}
    if self.target_temperature is not None:
      settings["temperature"] = self.target_temperature
    objective = functools.partial(OBJECTIVES[self.objective], **settings)
    scores = relevance(queries, candidates, score_scale=scale)
    found = masked_words.loss_given_blocks(
      encoders,
      batch.masks,
      tokens,
      inputs,
      block_scores=scores,
      has_null=self.null_block,
      span_weight=self.span_weight,
      objective=objective,
      has_target=self.objective in WITH_TARGET,
    )
    retrieved = tokens[:, int(self.null_block) :]
    has_words = masked_words.occurrences(batch.masks, retrieved)
    recall = Average.of(jnp.asarray(has_words).any(axis=(1, 2)))
    return found._replace(metrics={**found.metrics, "recall": recall})
