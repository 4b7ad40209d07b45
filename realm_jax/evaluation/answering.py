"""From a question to its answers in the text: retrieve, read, point."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, Float, Int, Int32

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.ranking import BlockRanker, Ranking
from realm_jax.evaluation.trained import (
  Trained,
  load_trained,
  open_generation,
  whole_batch,
)
from realm_jax.generations.follow.loading import Generation
from realm_jax.indexes.protocol import SearchError
from realm_jax.indexes.random import RandomConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import rules
from realm_jax.text.answer_spans import widen_to_words
from realm_jax.text.answers import normalize_answer
from realm_jax.training.stages.open_qa import OpenQa

CANDIDATES = ("index", "random")


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer where it stands.

  Attributes:
    text: as it was written.
    row: of the block it stands in.
    start_byte: where it begins in the block's body, in UTF-8 …
    limit_byte: … and ends.
    score: of its best span, the reader's plus the block's.
    probability: of the spans that say the same, among all that were read.
  """

  text: str
  row: int
  start_byte: int
  limit_byte: int
  score: float
  probability: float


@dataclasses.dataclass(frozen=True)
class Answered:
  """What one question gave.

  Attributes:
    answers: no two alike once normalised, in the order of their best spans;
      empty where the blocks read have no span.
    ranking: the blocks found, as arrays [k].
  """

  answers: Sequence[Answer]
  ranking: Ranking

  @property
  def prediction(self) -> str:
    """The best answer's text; empty without one."""
    return self.answers[0].text if self.answers else ""


class Answerer:
  """Answers questions with one checkpoint and one generation.

  The span with the largest sum of reader score and block score is the best,
  over all spans of all blocks read, as in Google's released ORQA.

  Args:
    trained: the checkpoint, with a reader.
    generation: what is searched.
    ranker: finds blocks in it.
    num_read: how many of the best are read.
    query_length: the longest question, with [CLS] and [SEP].
    block_length: the longest block.
    num_spans: how many of the best spans are looked at for answers.
  """

  def __init__(
    self,
    trained: Trained,
    generation: Generation,
    ranker: BlockRanker,
    *,
    num_read: int,
    query_length: int,
    block_length: int,
    num_spans: int = 1,
  ):
    num_blocks = generation.index.num_blocks
    if not 1 <= num_read <= num_blocks:
      raise SearchError(
        f"num_read={num_read} of the corpus's {num_blocks} blocks; choose "
        f"NUM_READ from 1 to {num_blocks}"
      )
    if num_read > ranker.num_searched:
      raise SearchError(
        f"num_read={num_read} exceeds num_searched={ranker.num_searched}; "
        "raise NUM_SEARCHED"
      )
    reader = trained.models.reader
    assert reader is not None
    self.trained = trained
    self.generation = generation
    self.num_read = num_read
    self.num_searched = ranker.num_searched
    self._ranker = ranker
    self._query_length = query_length
    self._block_length = block_length
    self._spans_shape = (num_read, block_length, reader.max_answer_width)
    self._read = jax.jit(
      functools.partial(
        best_spans, reader, min(num_spans, int(np.prod(self._spans_shape)))
      ),
      out_shardings=rules.batch_sharding(trained.mesh),
    )

  @property
  def corpus(self) -> Corpus:
    """Whose blocks are read."""
    return self.generation.corpus

  def ask(self, question: str) -> Answered:
    """The answers of one question.

    Raises:
      ValueError: the question has no words.
    """
    words = self.corpus.vocabulary
    token_ids = words.encode(question)[: self._query_length - 2]
    if not token_ids:
      raise ValueError(f"the question {question!r} has no words")
    queries = np.zeros((whole_batch(1), self._query_length), np.int32)
    queries[:, : len(token_ids) + 2] = [words.cls_id, *token_ids, words.sep_id]
    return self.answer(queries, num_questions=1)[0]

  def answer(
    self, token_ids: Int32[np.ndarray, "b q"], *, num_questions: int
  ) -> list[Answered]:
    """The answers of each question.

    Args:
      token_ids: of the questions; b is a multiple of the devices.
      num_questions: how many rows are questions; the others only fill up.
    """
    ranking = self._ranker.rank(token_ids)
    rows = ranking.rows[:, : self.num_read]
    batch = rules.to_devices(
      {
        "query": token_ids,
        "candidates": self.corpus.gather(rows, self._block_length),
        "scores": ranking.scores[:, : self.num_read],
      },
      self.trained.mesh,
    )
    places, scores, probabilities = map(
      np.asarray, self._read(self.trained.params["reader"], **batch)
    )
    block, start, extra = np.unravel_index(places, self._spans_shape)
    answered = []
    for i in range(num_questions):
      answers: dict[str, Answer] = {}
      for j in np.flatnonzero(np.isfinite(scores[i])).tolist():
        answer = locate_answer(
          self.corpus,
          int(rows[i, block[i, j]]),
          start=int(start[i, j]),
          width=int(extra[i, j]) + 1,
        )
        known = answers.setdefault(
          normalize_answer(answer.text),
          dataclasses.replace(answer, score=float(scores[i, j])),
        )
        answers[normalize_answer(answer.text)] = dataclasses.replace(
          known, probability=known.probability + float(probabilities[i, j])
        )
      answered.append(
        Answered(
          list(answers.values()), Ranking(*(part[i] for part in ranking))
        )
      )
    return answered


def best_spans(
  reader: Reader,
  num_spans: int,
  params: Any,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  scores: Float[Array, "b k"],
) -> tuple[Int[Array, "b n"], Float[Array, "b n"], Float[Array, "b n"]]:
  """The n best spans of k blocks together.

  Google's and Hugging Face's readers choose the best span's block and its
  place in the block apart. That is the same but where spans of two blocks
  score alike to the last bit; the two may then be of different spans there,
  and the first block's is taken here.

  Returns:
    Places in the flattened [k l w], scores (−∞ past the last span there is),
    and probabilities: the softmax over all spans.
  """
  spans = reader.apply({"params": params}, query, candidates, method="spans")
  totals = jnp.where(
    spans.is_span, spans.logits + scores[:, :, None, None], -jnp.inf
  ).reshape(len(query), -1)
  best, places = jax.lax.top_k(totals, num_spans)
  log_total = jax.nn.logsumexp(totals, axis=-1, keepdims=True)
  return places, best, jnp.exp(best - log_total)


def locate_answer(
  corpus: Corpus, row: int, *, start: int, width: int
) -> Answer:
  """The text of a span of body tokens, widened to whole words."""
  pieces = corpus.body_token_ids(row)
  start, limit = widen_to_words(
    start, start + width, corpus.vocabulary.is_continuation[pieces]
  )
  ranges = corpus.body_byte_ranges(row)
  return Answer(
    text=corpus.answer_text(row, start, limit),
    row=row,
    start_byte=int(ranges[start, 0]),
    limit_byte=int(ranges[limit - 1, 1]),
    score=0.0,
    probability=0.0,
  )


def load_answerer(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  generation: epath.PathLike | None = None,
  candidates: str = "index",
  index_scores: bool = False,
  num_searched: int = 20,
  num_read: int = 5,
  num_spans: int = 1,
  query_length: int = 64,
  block_length: int = 288,
  checkpoint_step: int | None = None,
) -> Answerer:
  """Loads all that answers a question, once.

  Args:
    model_dir: of a run of open QA, or one of its checkpoints.
    corpus_dir: what `build_corpus` wrote.
    retriever: the towers of the run.
    reader: its reader.
    generation: a generation, or a folder of them; None takes the one that
      the checkpoint says it was trained with.
    candidates: `index`, or `random` for the control that reads random blocks.
    index_scores: as the run was trained: True with BM25.
    num_searched: over how many blocks p(z|x) goes.
    num_read: how many of the best are read.
    num_spans: how many of the best spans are looked at for answers.
    query_length: the longest question, with [CLS] and [SEP].
    block_length: the longest block.
    checkpoint_step: which checkpoint; None takes the last.

  Raises:
    CheckpointError: the checkpoint is missing or does not fit.
    GenerationError: the generation is missing, damaged or of another corpus.
    SearchError: more blocks are to be read than there are.
  """
  if candidates not in CANDIDATES:
    raise ValueError(f"candidates={candidates!r}; want one of {CANDIDATES}")
  trained = load_trained(
    model_dir=model_dir,
    corpus_dir=corpus_dir,
    stage=OpenQa(index_scores=index_scores),
    retriever=retriever,
    reader=reader,
    query_length=query_length,
    block_length=block_length,
    checkpoint_step=checkpoint_step,
  )
  loaded = open_generation(
    trained,
    generation,
    index=RandomConfig() if candidates == "random" else None,
  )
  ranker = BlockRanker(
    trained, loaded, num_searched=num_searched, index_scores=index_scores
  )
  return Answerer(
    trained,
    loaded,
    ranker,
    num_read=num_read,
    query_length=query_length,
    block_length=block_length,
    num_spans=num_spans,
  )
