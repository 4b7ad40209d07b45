"""A served language model as the reader, whose likelihoods train the retriever.

The reader is a black box behind a URL that returns ℓ_z = log p(y|z, x) of a
text y for each candidate z. Only the retriever is trained (Shi et al. 2023,
"REPLUG: Retrieval-Augmented Black-Box Language Models", arXiv 2301.12652).
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs import reader_texts
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.objectives.marginal import ObjectiveInputs
from realm_jax.objectives.masked_lm import OBJECTIVES, require_objective
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.served_reader.scoring import ServedLanguageModel
from realm_jax.settings import NonNegativeInt, OfRun, PositiveFloat, Range
from realm_jax.training import encoder_inputs
from realm_jax.training.encoder_inputs import Candidates, EncoderInputs
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class ScoredBatch(NamedTuple):
  """Queries with their candidates, and the served reader's scores.

  Attributes:
    log_likelihood: ℓ_z of each candidate; −inf if it has no score.
  """

  query: Int[AnyArray, "b q"]
  candidates: Candidates
  log_likelihood: Float[AnyArray, "b k"]


@dataclasses.dataclass(frozen=True)
class ServedReader(Stage):
  """Trains the retriever to find blocks that make a target text likely.

  Attributes:
    language_model: Language model, its templates and its limits.
    num_read: Number of candidates that the model reads, including the null
      block.
    num_spare: Number of additional blocks to search for, so that verbatim
      copies of the source can be dropped.
    objective: Objective of the retriever: `replug`, `perplexity` or
      `leave_one_out`.
    target_temperature: Temperature of the target of p(z|x). None is the
      paper's.
    null_block: Whether the first candidate is the null block.
    drop_source: Whether the source of a text and its verbatim copies are
      dropped. Questions have no source.
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower.
  """

  language_model: ServedLanguageModel
  # With a single candidate there is nothing to learn.
  num_read: Annotated[int, Range(least=2), OfRun()] = 20
  num_spare: Annotated[NonNegativeInt, OfRun()] = 2
  objective: Annotated[str, OfRun()] = "replug"
  target_temperature: Annotated[PositiveFloat | None, OfRun()] = None
  null_block: Annotated[bool, OfRun()] = False
  drop_source: Annotated[bool, OfRun()] = False
  current_queries: bool = True
  evaluation = "gin/runs/eval_retrieval.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    objective = require_objective(
      self.objective,
      num_candidates=self.num_read,
      temperature=self.target_temperature,
      setting="NUM_READ",
    )
    if objective.target != "likelihood":
      names = [n for n, o in OBJECTIVES.items() if o.target == "likelihood"]
      raise RealmError(
        f"OBJECTIVE={self.objective!r} needs more of a reader than the "
        f"log-likelihoods that a served one gives; want one of {names}"
      )

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever",)

  @property
  def num_candidates(self) -> int:
    return self.num_read

  @property
  def retrieval(self) -> Retrieval:
    return Retrieval(
      self.num_read - self.null_block,
      setting="NUM_READ",
      num_spare=self.num_spare,
      drop_source=self.drop_source,
      null_block=self.null_block,
      current_queries=self.current_queries,
    )

  def check_services(self) -> None:
    self.language_model.check()

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None and context.step is not None
    rows = context.candidate_rows(self.retrieval, batch, found.rows)
    examples = context.examples or context.corpus
    blocks = {
      row: context.corpus.block(row) for row in {*rows.flat} - {NULL_ROW}
    }
    passages: dict[int, dict[str, str] | None] = {
      int(row): {"title": block.title, "text": block.text}
      for row, block in blocks.items()
    }
    pairs = zip(*reader_texts.texts_of(batch, examples), strict=True)
    texts = [
      self.language_model.text(passages.get(row), query, target)
      for own, (query, target) in zip(rows.tolist(), pairs, strict=True)
      for row in own
    ]
    scored = self.language_model.score(texts, context.step)
    features = ScoredBatch(
      batch.array("query"),
      Candidates.of(context.gather(rows)),
      scored.log_likelihoods.reshape(rows.shape),
    )
    return features, scored.metrics

  def dummy_batch(self, shapes: ExampleArrays) -> ScoredBatch:
    scores = np.zeros(shapes.candidates.shape[:2], np.float32)
    return ScoredBatch(shapes.query, Candidates.of(shapes.candidates), scores)

  def inputs(self, components: Components, batch: ScoredBatch) -> EncoderInputs:
    return encoder_inputs.retriever_inputs(
      components.retriever, batch.query, batch.candidates
    )

  def loss(
    self, encoders: Encoders, batch: ScoredBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the objective over the candidates that have a score.

    p(z|x) is a softmax over these candidates. An example with fewer than two of
    them does not count.
    """
    log_likelihood = jnp.asarray(batch.log_likelihood)
    has_score = log_likelihood > -jnp.inf
    counts = has_score.sum(axis=-1) > 1
    is_read = has_score | ~counts[:, None]
    scores = encoders.candidate_scores(inputs)
    log_prior = jax.nn.log_softmax(
      jnp.where(is_read, scores, -jnp.inf), axis=-1
    )
    likelihood = jnp.where(counts[:, None], log_likelihood, 0.0)
    # The objectives see a text as a single token.
    weights = counts[:, None].astype(jnp.float32)
    values = ObjectiveInputs(
      log_prior, likelihood[..., None], weights, likelihood
    )
    objective = OBJECTIVES[self.objective]
    weighted = objective.of("joint", self.target_temperature)(values)
    prior = jax.lax.stop_gradient(log_prior)
    log_p = jnp.where(is_read, prior, 0.0)
    entropy = -jnp.sum(jnp.exp(prior) * log_p, axis=-1)
    expected = jnp.sum(jnp.exp(prior) * jnp.where(is_read, likelihood, 0.0), -1)
    best = jnp.max(likelihood, axis=-1)
    metrics = {
      "candidate_entropy": Average.of(entropy, counts),
      "expected_log_likelihood": Average.of(expected, counts),
      "best_log_likelihood": Average.of(best, counts),
    }
    return WeightedLoss(weighted.loss, {**metrics, **weighted.metrics})
