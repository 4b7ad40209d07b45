"""Runs and corpora as Python objects; docs/evaluation.md has examples.

`load` opens a trained run. It reads the configuration that the run keeps,
without flags. `build_corpus` and `Bm25Search` need no run.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np
from etils import epath
from jaxtyping import Float32
from scipy.special import softmax

from realm_jax import configuration
from realm_jax.corpus.build import build_corpus as build_corpus
from realm_jax.corpus.filters import Where
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.evaluation.ask import ask, require_answering
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.encoding import encode_queries
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.result import Answer as Answer
from realm_jax.evaluation.result import Hit, Result
from realm_jax.evaluation.run import QUESTION, TrainedRun
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import Blocks, QueryBatch
from realm_jax.storage.access import require_readable


class LoadedRun(TrainedRun):
  """A checkpoint, its corpus and its index, in this process.

  A method takes one text and returns one result, or takes a list of any length
  and returns a list. Texts are computed in batches of at most 16; a program is
  compiled once for each shape of a batch.
  """

  @overload
  def ask(
    self,
    questions: str,
    *,
    num_answers: int = 3,
    where: Where | None = None,
    rerank: bool = True,
  ) -> Result: ...
  @overload
  def ask(
    self,
    questions: Sequence[str],
    *,
    num_answers: int = 3,
    where: Where | None = None,
    rerank: bool = True,
  ) -> list[Result]: ...
  def ask(
    self,
    questions: str | Sequence[str],
    *,
    num_answers: int = 3,
    where: Where | None = None,
    rerank: bool = True,
  ) -> Result | list[Result]:
    """Answers questions, each with at most `num_answers` answers.

    With `where`, such as `{"language": "de"}`, from the blocks alone that a
    filter lets through (`realm_jax.corpus.filters`). Without `rerank`, the
    order of what is found is the retriever's, also where the run has a
    cross-encoder.

    Raises:
      CheckpointError: The run was not trained to answer questions.
      RealmError: A question has no words, num_answers is below 1, or the filter
        does not fit the corpus.

    Example:
      >>> result = run.ask("where was Ada born?", num_answers=2)
      >>> len(result.answers), len(result.hits)  # The hits are the blocks read.
      (2, 5)
      >>> best = result.answers[0]
      >>> best.text == best.block.text[best.start : best.limit]
      True
    """
    if num_answers < 1:
      raise RealmError(f"num_answers={num_answers}; want at least 1")
    self.require_kind(QUESTION)
    run = self.restricted(where, rerank=rerank)
    return _of_each(
      questions,
      lambda texts: [
        dataclasses.replace(one, answers=one.answers[:num_answers])
        for one in ask(run, texts)
      ],
    )

  @overload
  def retrieve(
    self,
    queries: str,
    k: int = 5,
    *,
    where: Where | None = None,
    rerank: bool = True,
  ) -> list[Hit]: ...
  @overload
  def retrieve(
    self,
    queries: Sequence[str],
    k: int = 5,
    *,
    where: Where | None = None,
    rerank: bool = True,
  ) -> list[list[Hit]]: ...
  def retrieve(
    self,
    queries: str | Sequence[str],
    k: int = 5,
    *,
    where: Where | None = None,
    rerank: bool = True,
  ) -> list[Hit] | list[list[Hit]]:
    """Retrieves the k best blocks for queries, best first.

    With `where` and `rerank`, as in `ask`: of the blocks that a filter lets
    through, all if they are fewer.

    Raises:
      SnapshotError: The snapshot is missing or damaged.
      RealmError: A query has no words, the corpus has fewer than k blocks, k is
        below 1, or the filter does not fit the corpus.

    Example:
      >>> hits = run.retrieve("who built the bridge of Tarn?", k=3)
      >>> len(hits), sum(hit.probability for hit in hits)
      (3, 1.0)
      >>> hits = run.retrieve("where was Ada born?", where={"year": "1901"})
      >>> sorted(hit.block.title for hit in hits)
      ['Béla Stone', 'Oda Stone']
    """
    run = self.restricted(where, rerank=rerank)

    def search(texts: Sequence[str]) -> list[list[Hit]]:
      blocks = self.corpus.num_blocks
      if not 1 <= k <= blocks:
        raise RealmError(
          f"k={k}; want at least 1 and at most {blocks}, all blocks of the "
          "corpus"
        )
      if not texts:
        return []
      return self.hits(run.search(self.encode(texts), k))

    return _of_each(queries, search)

  def embed(self, texts: str | Sequence[str]) -> Float32[np.ndarray, "*n d"]:
    """Returns the vectors of texts, as queries: a row for each.

    The inner product with the vector of a block, `snapshot.vectors(rows)`,
    times the retriever's scale, is the block's score.

    Raises:
      ValueError: A text has no words, or the run has no towers, because it was
        trained on the scores of its index (INDEX_SCORES).

    Example:
      >>> run.embed("where was Ada born?").shape
      (8,)
      >>> run.embed(["where was Ada born?", "what did Oda build?"]).shape
      (2, 8)
    """
    if self.config.index_scores:
      raise RealmError(
        "the run was trained on the scores of its index (INDEX_SCORES), and "
        "has no towers that embed"
      )
    return _of_each(texts, lambda own: self.embed_tokens(self.encode(own)))

  @overload
  def explain(self, texts: str, answer: str | None = None) -> Result: ...
  @overload
  def explain(
    self, texts: Sequence[str], answer: str | None = None
  ) -> list[Result]: ...
  def explain(
    self, texts: str | Sequence[str], answer: str | None = None
  ) -> Result | list[Result]:
    """Explains what the run fills in, or answers, as `realm_jax.explain` does.

    A run of pre-training takes sentences with [MASK], and one of open QA
    questions. Without an `answer`, the best one is explained.

    Raises:
      CheckpointError: The run was not trained for such texts.
      RealmError: A text has no words, or the answer does not fit it.

    Example:
      >>> result = run.explain("where was Ada born?")
      >>> sum(hit.share for hit in result.hits)
      1.0
    """
    return _of_each(
      texts, lambda own: [explain(self, one, answer) for one in own]
    )


def load(
  model_dir: epath.PathLike,
  *,
  corpus_dir: epath.PathLike | None = None,
  snapshot: epath.PathLike | None = None,
  checkpoint_step: int | Literal["best"] | None = None,
  gin_files: Sequence[str] = (),
  bindings: Sequence[str] = (),
  modules: Sequence[str] = (),
) -> LoadedRun:
  """Loads a trained run.

  A run of open QA answers, retrieves, embeds and explains its answers; one of
  another stage that trains a retriever retrieves and embeds, and one of
  pre-training explains what it fills in.

  Args:
    model_dir: MODEL_DIR of a run, or of an import, local or on an object store.
    corpus_dir: Corpus; None takes the one that the run was trained on.
    snapshot: Snapshot to search, or a folder whose newest snapshot is searched.
      None takes the one that the checkpoint was trained with.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the one that `realm_jax.evaluate --follow` has named.
    gin_files: Gin files over gin/runs/ask.gin and what the run keeps.
    bindings: `NAME = VALUE`, such as `"NUM_READ = 10"`.
    modules: Modules of your own to import, which the run names.

  Raises:
    ConfigurationError: The run has kept no configuration and the gin files are
      none, or a file or binding is wrong.
    CheckpointError: The checkpoint is missing or does not fit.
    CorpusError, SnapshotError: The corpus or the index is missing or damaged.
    StoreAccessError: A bucket cannot be read.
    TypeError: The gin files, the bindings or the modules are no list.

  Example:
    >>> run = realm_jax.load("runs/qa", bindings=["NUM_READ = 2"])
    >>> run
    <LoadedRun '.../runs/qa', checkpoint 0>
    >>> len(run.ask("where was Ada born?").hits)
    2
  """
  lists = {"gin_files": gin_files, "bindings": bindings, "modules": modules}
  for name, value in lists.items():
    if isinstance(value, str):
      raise TypeError(f"{name}={value!r}; want a list of strings")
  config = configuration.parsed(
    RunConfig,
    gin_files,
    bindings,
    model_dir=model_dir,
    recipe="gin/runs/ask.gin",
    corpus_dir=corpus_dir,
    modules=modules,
  ).build(RunConfig)
  if snapshot is not None:
    config = dataclasses.replace(config, snapshot=snapshot)
  if checkpoint_step is not None:
    config = dataclasses.replace(config, checkpoint_step=checkpoint_step)
  run = LoadedRun.load(config)
  if QUESTION in run.kinds:
    # What is missing is known now, and not at the first question.
    require_answering(run)
  return run


class Bm25Search:
  """Finds the blocks of a corpus by their words (BM25), without a run.

  Attributes:
    corpus: The corpus.

  Example:
    >>> search = realm_jax.Bm25Search("corpus")
    >>> search.corpus.num_blocks
    28
  """

  def __init__(
    self, corpus_dir: epath.PathLike, *, k1: float = 0.9, b: float = 0.4
  ):
    """Indexes a corpus, in a temporary file.

    Args:
      corpus_dir: Corpus directory, as `build_corpus` wrote it.
      k1, b: Parameters of BM25, as in `Bm25Config`.

    Raises:
      CorpusError: There is no corpus, or it is damaged.
      StoreAccessError: A bucket cannot be read.
    """
    require_readable(corpus_dir)
    self.corpus = corpus = Corpus.open(corpus_dir)
    blocks = Blocks(
      num_blocks=corpus.num_blocks,
      token_ids=lambda row: corpus.block(row).token_ids,
      vocab_size=corpus.vocab_size,
    )
    self._index = Bm25Config(k1=k1, b=b).build(blocks)

  @overload
  def retrieve(self, queries: str, k: int = 5) -> list[Hit]: ...
  @overload
  def retrieve(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]: ...
  def retrieve(
    self, queries: str | Sequence[str], k: int = 5
  ) -> list[Hit] | list[list[Hit]]:
    """Retrieves the k best blocks for queries, as `LoadedRun.retrieve` does.

    Queries longer than a block are cut.

    Raises:
      SearchError: The corpus has fewer than k blocks, or k is below 1.
      RealmError: A query has no words.

    Example:
      >>> search = realm_jax.Bm25Search("corpus")
      >>> (best,) = search.retrieve("where was Oda born?", k=1)
      >>> best.block.title
      'Oda Stone'
    """

    def search(texts: Sequence[str]) -> list[list[Hit]]:
      corpus = self.corpus
      token_ids, refused = encode_queries(
        corpus.vocabulary, texts, corpus.block_length
      )
      for error in refused.values():
        raise error
      result = self._index.search(QueryBatch(token_ids), k)
      scores = np.float64(result.scores)
      columns = result.rows, scores, softmax(scores, axis=1)
      return [
        [
          Hit(corpus.block(n), score, p)
          for n, score, p in zip(*own, strict=True)
        ]
        for own in zip(*(one.tolist() for one in columns), strict=True)
      ]

    return _of_each(queries, search)


def _of_each(
  texts: str | Sequence[str], function: Callable[[Sequence[str]], Any]
) -> Any:
  """Applies a function to a list of texts; of one text it returns the one.

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
  results = function(listed)
  return results[0] if isinstance(texts, str) else results
