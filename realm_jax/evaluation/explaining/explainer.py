"""Explains sentences and questions with one checkpoint and one generation."""

import dataclasses
import functools

from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.masked import MaskedExplainer
from realm_jax.evaluation.explaining.masked_text import MaskLimits, is_masked
from realm_jax.evaluation.explaining.question import QuestionExplainer
from realm_jax.evaluation.explaining.results import Explanation
from realm_jax.evaluation.explaining.trained_heads import (
  require_masked_lm_head,
  require_span_head,
)
from realm_jax.evaluation.explaining.unaided import UnaidedModel
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.loading import Generation
from realm_jax.settings import PositiveInt, require_valid
from realm_jax.training.stages.open_qa import OpenQa


@dataclasses.dataclass(frozen=True)
class ExplainingConfig:
  """Which candidates are shown, and how many fillings.

  Attributes:
    num_candidates: Candidates of a masked sentence, the null block included.
    num_read: Blocks that are retrieved and read for a question.
    index_scores: Whether a run of open QA was trained on the index's own
      scores (BM25).
    max_masks: Number of masks that the run was trained to score together.
    num_fillings: Number of the best fillings or answers.
  """

  num_candidates: PositiveInt = 8
  num_read: PositiveInt = 5
  index_scores: bool = False
  max_masks: PositiveInt = 10
  num_fillings: PositiveInt = 5

  def __post_init__(self) -> None:
    require_valid(self)


class Explainer:
  """Explains any number of sentences and questions.

  A text with [MASK] is a sentence to fill in, by a run of pre-training; any
  other is a question, to a run of open QA.

  Args:
    model: Checkpoint of the run.
    generation: Generation to search.
    config: What is shown.
  """

  def __init__(
    self,
    model: TrainedModel,
    generation: Generation,
    config: ExplainingConfig,
  ):
    self.model, self.generation, self.config = model, generation, config
    self.corpus = generation.corpus

  @property
  def limits(self) -> MaskLimits:
    """The lengths of sentences with [MASK]."""
    return MaskLimits(self.model.source.query_length, self.config.max_masks)

  def explain(
    self,
    text: str,
    answer: str | None = None,
    *,
    baseline: UnaidedModel | None = None,
  ) -> Explanation:
    """Explains what the run fills in, or answers.

    Args:
      text: Sentence with [MASK], or question.
      answer: Answer y whose probability is explained; for a sentence, of its
        one place to fill in. None takes the most likely one.
      baseline: Another model, which fills in the sentence without retrieval.

    Raises:
      ExplanationError: The text has no words, or does not fit this run; or the
        answer does not fit the text.
    """
    if not text.strip():
      raise ExplanationError(
        "the sentence is empty; write one with [MASK], or a question"
      )
    if is_masked(text):
      require_masked_lm_head(self.model)
      return self._masked.explain(text, answer, baseline)
    if baseline is not None:
      raise ExplanationError(
        f"{text!r} has no [MASK], which a baseline fills in"
      )
    require_span_head(self.model, text)
    return self._questions.explain(text, answer)

  @functools.cached_property
  def _masked(self) -> MaskedExplainer:
    if self.config.index_scores:
      raise ExplanationError(
        "a run on the index's own scores (INDEX_SCORES) has no query tower, "
        "and answers questions alone; ask one without [MASK]"
      )
    return MaskedExplainer(
      self.model,
      self.generation,
      num_candidates=self.config.num_candidates,
      limits=self.limits,
      num_fillings=self.config.num_fillings,
    )

  @functools.cached_property
  def _questions(self) -> QuestionExplainer:
    return QuestionExplainer(
      self.model,
      self.generation,
      num_read=self.config.num_read,
      index_scores=self.config.index_scores,
      num_answers=self.config.num_fillings,
    )


def load_explainer(
  *, source: ModelSource, config: ExplainingConfig
) -> Explainer:
  """Loads a checkpoint and its generation, to explain any number of texts.

  Raises:
    CheckpointError: The checkpoint is missing or does not fit.
    GenerationError: The generation is missing, damaged or of another corpus.
  """
  model = load_model(source, OpenQa(index_scores=config.index_scores))
  return Explainer(model, open_generation(model), config)
