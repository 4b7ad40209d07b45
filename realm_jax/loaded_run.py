"""A trained run as a Python object, for notebooks and programs.

    import realm_jax

    run = realm_jax.load("runs/qa")
    run.ask("who wrote Northern Lights?").text

`load` reads the configuration that the run keeps. It parses no flags, and
leaves gin as it was. docs/python_interface.md shows all of it.
"""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Literal, overload

# Before all that imports TensorFlow, whose messages it hides.
from realm_jax import configuration  # isort: split

import numpy as np
from etils import epath
from jaxtyping import Float32, Int32

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.answered_question import (
  AnsweredQuestion,
  FoundAnswer,
  RetrievedBlock,
)
from realm_jax.evaluation.answering import (
  Answered,
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.explaining.explainer import (
  Explainer,
  ExplainingConfig,
  load_explainer,
)
from realm_jax.evaluation.explaining.results import Explanation
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.queries import (
  QueryEmbedder,
  batches_of,
  encode_queries,
)
from realm_jax.evaluation.ranking import BlockRanker, Ranking
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.loading import Generation
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.open_qa import OpenQa

# gin's configuration is that of the whole process while a run is configured.
_configuring = threading.Lock()


@dataclasses.dataclass(frozen=True)
class LoadedRunConfig:
  """How a run is opened; gin binds it.

  Attributes:
    source: Checkpoint, corpus and generation.
    answering: Which blocks are retrieved and read for a question.
    explaining: What an explanation shows.
  """

  source: ModelSource
  answering: AnsweringConfig
  explaining: ExplainingConfig


class LoadedRun:
  """A checkpoint, its corpus and its index, in this process.

  Texts may be a list of any length, or one text, for which the result is one,
  too. They are computed in batches of at most 16, for each shape of which a
  program is compiled once.

  Attributes:
    model: Parameters, on this process's devices, and modules.
    corpus: Corpus that the model was loaded with.
  """

  def __init__(
    self,
    model: TrainedModel,
    config: LoadedRunConfig,
    answerer: Answerer | CheckpointError,
  ):
    self.model = model
    self._config = config
    self._answerer = answerer

  def __repr__(self) -> str:
    return (
      f"<LoadedRun {str(self.model.model_dir)!r}, checkpoint "
      f"{self.model.step}, {self.corpus.num_blocks} blocks>"
    )

  @property
  def corpus(self) -> Corpus:
    return self.model.corpus

  @functools.cached_property
  def generation(self) -> Generation:
    """Generation that is searched; it is loaded when it is first needed."""
    if isinstance(self._answerer, Answerer):
      return self._answerer.generation
    return open_generation(self.model, prefer_own=True)

  @overload
  def ask(
    self, questions: str, *, num_answers: int = 3
  ) -> AnsweredQuestion: ...
  @overload
  def ask(
    self, questions: Sequence[str], *, num_answers: int = 3
  ) -> list[AnsweredQuestion]: ...
  def ask(
    self, questions: str | Sequence[str], *, num_answers: int = 3
  ) -> AnsweredQuestion | list[AnsweredQuestion]:
    """Answers questions from the blocks that are retrieved for them.

    Args:
      questions: Questions, or one.
      num_answers: Number of answers to each, at most.

    Raises:
      CheckpointError: The checkpoint has no reader of questions.
      ValueError: A question has no words, or num_answers is below 1.
    """
    if num_answers < 1:
      raise ValueError(f"num_answers={num_answers}; want at least 1")
    answerer = self._answerer
    if isinstance(answerer, CheckpointError):
      raise answerer
    texts = _listed(questions)
    answered: list[Answered] = []
    for batch, count in batches_of(self._encoded(texts)):
      answered += answerer.answer(batch, num_questions=count)
    results = [
      self._shown(text, one, num_answers)
      for text, one in zip(texts, answered, strict=True)
    ]
    return results[0] if isinstance(questions, str) else results

  @overload
  def retrieve(self, queries: str, k: int = 5) -> list[RetrievedBlock]: ...
  @overload
  def retrieve(
    self, queries: Sequence[str], k: int = 5
  ) -> list[list[RetrievedBlock]]: ...
  def retrieve(
    self, queries: str | Sequence[str], k: int = 5
  ) -> list[RetrievedBlock] | list[list[RetrievedBlock]]:
    """Retrieves the k best blocks for queries, best first.

    Raises:
      GenerationError: The generation is missing or damaged.
      ValueError: A query has no words, or the corpus has fewer than k blocks,
        or k is below 1.
    """
    blocks = self.generation.corpus.num_blocks
    if not 1 <= k <= blocks:
      raise ValueError(
        f"k={k}; want at least 1 and at most {blocks}, all blocks of the corpus"
      )
    results: list[list[RetrievedBlock]] = []
    for batch, count in batches_of(self._encoded(_listed(queries))):
      ranking = self._ranker.rank(batch, num_searched=k)
      results += [self._blocks(ranking.of_query(i)) for i in range(count)]
    return results[0] if isinstance(queries, str) else results

  def embed(
    self, texts: str | Sequence[str]
  ) -> Float32[np.ndarray, " d"] | Float32[np.ndarray, "n d"]:
    """Returns the vectors of texts, as queries: a row for each.

    The inner product with the vector of a block, `generation.vectors(rows)`,
    times the retriever's scale, is the block's score.

    Raises:
      ValueError: A text has no words, or the run has no towers, because it was
        trained on the scores of its index (INDEX_SCORES).
    """
    if self._config.answering.index_scores:
      raise ValueError(
        "the run was trained on the scores of its index (INDEX_SCORES), and "
        "has no towers that embed"
      )
    vectors = [
      self._embedder(batch)[:count]
      for batch, count in batches_of(self._encoded(_listed(texts)))
    ]
    size = self.model.models.retriever.vector_size
    rows = np.concatenate([np.zeros((0, size), np.float32), *vectors])
    return rows[0] if isinstance(texts, str) else rows

  @overload
  def explain(self, texts: str, answer: str | None = None) -> Explanation: ...
  @overload
  def explain(
    self, texts: Sequence[str], answer: str | None = None
  ) -> list[Explanation]: ...
  def explain(
    self, texts: str | Sequence[str], answer: str | None = None
  ) -> Explanation | list[Explanation]:
    """Explains what the run fills in, or answers, as `realm_jax.explain` does.

    Args:
      texts: Sentences with [MASK], for a run of pre-training, or questions, for
        one of open QA; or one of them.
      answer: Answer whose probability is explained. None takes the most likely
        one.

    Raises:
      CheckpointError: The checkpoint has no reader.
      ExplanationError: A text, or the answer, does not fit this run.
    """
    results = [self._explainer.explain(one, answer) for one in _listed(texts)]
    return results[0] if isinstance(texts, str) else results

  @functools.cached_property
  def _explainer(self) -> Explainer:
    """Its model is loaded when it is needed, unless it is the one that asks."""
    config = self._config
    if isinstance(self._answerer, Answerer):
      return Explainer(self.model, self.generation, config.explaining)
    return load_explainer(source=config.source, config=config.explaining)

  @functools.cached_property
  def _embedder(self) -> QueryEmbedder:
    return QueryEmbedder(self.model)

  @functools.cached_property
  def _ranker(self) -> BlockRanker:
    answering = self._config.answering
    return BlockRanker(
      self.model,
      self.generation,
      num_searched=answering.num_searched,
      index_scores=answering.index_scores,
      by_index_order=not self.generation.index.needs_vectors,
    )

  def _encoded(self, texts: Sequence[str]) -> Int32[np.ndarray, "n q"]:
    length = self.model.source.query_length
    return encode_queries(texts, self.corpus.vocabulary, length)

  def _blocks(self, ranking: Ranking) -> list[RetrievedBlock]:
    """Returns the blocks of one query."""
    corpus = self.generation.corpus
    return [
      RetrievedBlock(
        id=block.name,
        title=block.title,
        text=block.body,
        url=block.url,
        score=score,
        probability=probability,
      )
      for row, score, probability in zip(
        *(array.tolist() for array in ranking), strict=True
      )
      for block in [corpus.block(row)]
    ]

  def _shown(
    self, question: str, answered: Answered, num_answers: int
  ) -> AnsweredQuestion:
    blocks = self._blocks(answered.ranking)
    of_row = dict(zip(answered.ranking.rows.tolist(), blocks, strict=True))
    answers = []
    for answer in answered.answers[:num_answers]:
      block = of_row[answer.row]
      text = block.text.encode()
      start = len(text[: answer.start_byte].decode())
      limit = len(text[: answer.limit_byte].decode())
      answers.append(
        FoundAnswer(
          text=answer.text,
          probability=answer.probability,
          score=answer.score,
          block=block,
          start=start,
          limit=limit,
        )
      )
    return AnsweredQuestion(question, answers, blocks)


def load(
  model_dir: epath.PathLike,
  *,
  corpus_dir: epath.PathLike | None = None,
  generation: epath.PathLike | None = None,
  checkpoint_step: int | Literal["best"] | None = None,
  gin_files: Sequence[str] = (),
  bindings: Sequence[str] = (),
) -> LoadedRun:
  """Loads a trained run.

  A run of open QA answers, retrieves, embeds and explains its answers; one of
  another stage that trains a retriever retrieves and embeds, and one of
  pre-training explains what it fills in.

  Args:
    model_dir: MODEL_DIR of a run, or of an import, local or on an object store.
    corpus_dir: Corpus; None takes the one that the run was trained on.
    generation: Generation to search, or a folder of them, of which the newest
      is taken. None takes the one that the checkpoint was trained with.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the one that `realm_jax.evaluate --follow` has named.
    gin_files: Gin files over gin/runs/ask.gin and what the run keeps.
    bindings: `NAME = VALUE`, such as `"NUM_READ = 10"`.

  Raises:
    ConfigurationError: The run has kept no configuration and the gin files are
      none, or a file or binding is wrong.
    CheckpointError: The checkpoint is missing or does not fit.
    CorpusError, GenerationError: The corpus or the index is missing or damaged.
    StoreAccessError: A bucket cannot be read.
  """
  with (
    _configuring,
    configuration.parsed_for_run(
      LoadedRunConfig,
      model_dir,
      recipe="gin/runs/ask.gin",
      corpus_dir=corpus_dir,
      gin_files=gin_files,
      bindings=bindings,
    ) as kept,
  ):
    config = configuration.configured(LoadedRunConfig)()
  source = config.source
  if generation is not None:
    source = dataclasses.replace(source, generation=generation)
  if checkpoint_step is not None:
    source = dataclasses.replace(source, checkpoint_step=checkpoint_step)
  config = dataclasses.replace(config, source=source)
  stage = None if kept is None else kept.stage
  if stage in (None, OpenQa.__name__):
    try:
      answerer = load_answerer(source, config.answering)
      return LoadedRun(answerer.model, config, answerer)
    except CheckpointError as error:
      # An import, or a run that keeps nothing, may have no reader of questions.
      if stage is not None:
        raise
      problem = error
  else:
    problem = CheckpointError(
      f"{source.model_dir} is a run of the stage {stage}, whose reader has not "
      "learnt to answer questions; load one of gin/runs/open_qa.gin"
    )
  model = load_model(dataclasses.replace(source, reader=None), InverseCloze())
  return LoadedRun(model, config, problem)


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
  """Returns texts as a list.

  Raises:
    TypeError: There is something else than texts.
  """
  listed = [texts] if isinstance(texts, str) else texts
  if not isinstance(listed, Sequence) or any(
    not isinstance(text, str) for text in listed
  ):
    raise TypeError(
      f"{texts!r} is no text; give a string, or a list of strings"
    )
  return listed
