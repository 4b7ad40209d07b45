"""Answers questions by retrieval and the reader of a run.

An extractive reader scores the spans s of the blocks that it reads. Training
takes one softmax of reader(s) + f(x, z) over all of them (ORQA, section 5),
which is a joint distribution of block and span. All reported probabilities are
sums over it: p(y|x) over the spans with the text y, p(z|x) over the spans of a
block, and a block's share of y is the block's part of p(y|x). Other readers
register a function (see `answer_from_blocks`).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy.special import logsumexp

from realm_jax.answers.normalize import normalize_answer
from realm_jax.answers.spans import widen_to_words
from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus.graphs import edge_kinds
from realm_jax.corpus.store import Block
from realm_jax.errors import RealmError
from realm_jax.evaluation.result import Answer, Hit, Result
from realm_jax.evaluation.run import QUESTION, TrainedRun
from realm_jax.evaluation.written_answers import answer_by_writing
from realm_jax.indexes.protocol import SearchError
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.graph_reader import GraphInputs, GraphReader
from realm_jax.models.packing import padded_inputs
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader


def ask(
  run: TrainedRun,
  questions: Sequence[str],
  *,
  answer: str | None = None,
  token_ids: Int32[np.ndarray, "n q"] | None = None,
) -> list[Result]:
  """Answers questions from the blocks that are retrieved for them.

  Args:
    run: Run of open QA, with the number of blocks to read in its configuration.
    questions: Any number of questions.
    answer: Answer whose probabilities are wanted; None chooses the best one.
    token_ids: Tokens of the questions, if they have been encoded already.

  Raises:
    SearchError: `num_read` exceeds the number of retrieved blocks.
    RealmError: A question has no words, or the configuration chooses blocks by
      known answers.

  Example:
    >>> (result,) = ask(run, ["where was Ada born?"], answer="the moon")
    >>> result.answer, result.probability
    ('the moon', 0.0)
  """
  if run.config.candidates == "gold":
    raise RealmError(
      'CANDIDATES = "gold" reads the blocks that contain an answer, which is '
      "not known here; it is for `realm_jax.evaluate`"
    )
  require_answering(run)
  results, config = [], run.config
  if token_ids is None:
    token_ids = run.encode(questions)
  for start in range(0, len(questions), run.max_batch):
    part = slice(start, start + run.max_batch)
    result = run.search(token_ids[part], config.num_searched)
    read = [retrieved[: config.num_read] for retrieved in run.hits(result)]
    results += answer_from_blocks(
      run.require_reader(), run, questions[part], token_ids[part], read, answer
    )
  return results


def require_answering(run: TrainedRun) -> None:
  """Checks that a run can answer questions, and loads its snapshot.

  Raises:
    CheckpointError: The run has no reader.
    SearchError: `num_read` exceeds the number of retrieved blocks.
    SnapshotError: The snapshot is missing or damaged.
  """
  run.require_reader()
  if not run.retrieves:
    return
  num_blocks, config = run.snapshot.num_blocks, run.config
  number = min(config.num_searched, num_blocks)
  if config.num_read > number:
    raise SearchError(
      f"num_read={config.num_read} of num_searched={number} blocks; choose "
      f"NUM_READ from 1 to {number}, or raise NUM_SEARCHED (the corpus has "
      f"{num_blocks} blocks)"
    )


@functools.singledispatch
def answer_from_blocks(
  reader: Any,
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  answer: str | None = None,
) -> list[Result]:
  """Answers questions from blocks that were retrieved for them.

  Each class of readers registers its own function:
  `@answer_from_blocks.register(MyReader)`.

  Args:
    reader: Module of the run's reader.
    run: Run, with the parameters of the reader.
    questions: Questions.
    token_ids: Questions in wordpieces, `[CLS] x [SEP]`, padded with 0.
    hits: Blocks to read for each question, the same number for all, best first.
    answer: Answer whose probabilities are wanted; None chooses the best one.

  Raises:
    CheckpointError: The reader does not answer questions.
  """
  del questions, token_ids, hits, answer
  raise CheckpointError(
    f"the reader of {run!r}, a {type(reader).__name__}, answers no questions; "
    "register a function for it by `answer_from_blocks.register`"
  )


answer_from_blocks.register(GenerativeReader)(answer_by_writing)


@answer_from_blocks.register
def answer_from_spans(
  reader: BertReader,
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  answer: str | None = None,
) -> list[Result]:
  """Answers questions by spans (see `answer_from_blocks`)."""
  scores = np.array([[hit.relevance for hit in own] for own in hits], "f4")
  logits = run.compute(
    span_logits,
    reader,
    run.params["reader"],
    query=token_ids,
    blocks=run.gather_hits(hits),
  )
  totals = logits + scores[:, :, None, None]
  return [
    _best_spans(run, *of_question, answer)
    for of_question in zip(questions, hits, totals, strict=True)
  ]


@answer_from_blocks.register
def answer_from_graphs(
  reader: GraphReader,
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  answer: str | None = None,
) -> list[Result]:
  """Answers questions by spans of graphs (see `answer_from_blocks`).

  The reader scores the blocks itself; the retriever's scores are not used.
  """
  rows = np.array([[hit.block.row for hit in own] for own in hits])
  totals = run.compute(
    graph_span_logits,
    reader,
    run.params["reader"],
    query=token_ids,
    blocks=run.gather_hits(hits),
    edges=edge_kinds(run.corpus, rows),
  )
  return [
    _best_spans(run, *of_question, answer)
    for of_question in zip(questions, hits, totals, strict=True)
  ]


def span_logits(
  reader: BertReader,
  params: Params,
  query: Int[Array, "b q"],
  blocks: Int[Array, "b k l"],
) -> Float[Array, "b k l w"]:
  """Returns the reader's scores of spans, −∞ for invalid ones.

  The span with the best score, including the score of its block, is also the
  choice of Google's and Hugging Face's readers. These choose the block of the
  best span and the position in the block separately, which differs only if
  spans of two blocks have exactly equal scores.
  """
  spans = reader.apply(
    {"params": params},
    padded_inputs(reader.join(query, blocks)),
    num_starts=blocks.shape[-1],
    method="spans",
  )
  return jnp.where(spans.is_span, spans.logits, -jnp.inf)


def graph_span_logits(
  reader: GraphReader,
  params: Params,
  query: Int[Array, "b q"],
  blocks: Int[Array, "b k l"],
  edges: Int[Array, "b k k"],
) -> Float[Array, "b k l w"]:
  """Returns the reader's scores of spans in connected blocks, or −∞."""
  inputs = GraphInputs(reader.join(query, blocks), edges)
  spans = reader.apply(
    {"params": params},
    padded_inputs(inputs),
    num_starts=blocks.shape[-1],
    method="graph_spans",
  )
  return jnp.where(spans.is_span, spans.logits, -jnp.inf)


class _Spans:
  """All spans of the blocks that were read for a question.

  A span is its index in the flattened scores.

  Args:
    run: Run that has read the blocks.
    blocks: The blocks.
    totals: The reader's scores plus the scores of the blocks.

  Attributes:
    log_p: Log probabilities of span and block.
  """

  def __init__(
    self,
    run: TrainedRun,
    blocks: Sequence[Block],
    totals: Float32[np.ndarray, "k l w"],
  ):
    self._blocks, self._totals = blocks, totals
    self._is_continuation = run.vocabulary.is_continuation
    self._language = run.corpus.language
    self.log_p = np.float64(totals)
    if np.isfinite(self.log_p).any():
      self.log_p -= logsumexp(self.log_p)

  def _read(self, span: int) -> tuple[int, str, int, int]:
    """Returns the index of a span's block, and its text as whole words.

    Also returns the text's characters `[start, limit)` in the block.
    """
    k, start, extra = map(int, np.unravel_index(span, self.log_p.shape))
    block, body = self._blocks[k], self._blocks[k].text.encode()
    start, limit = widen_to_words(
      start, start + extra + 1, self._is_continuation[block.body_token_ids]
    )
    first = int(block.byte_ranges[start, 0])
    last = int(block.byte_ranges[limit - 1, 1])
    text, begin = body[first:last].decode(), len(body[:first].decode())
    return k, text, begin, begin + len(text)

  def answer(self, spans: Sequence[int]) -> Answer:
    """Makes an answer from its spans, which are sorted, best first."""
    k, text, first, limit = self._read(spans[0])
    by_block = np.unravel_index(spans, self.log_p.shape)[0]
    p = np.exp(self.log_p.reshape(-1)[spans])
    shares = np.bincount(by_block, p, len(self._blocks)) / p.sum()
    score = float(self._totals.reshape(-1)[spans[0]])
    return Answer(
      text,
      float(p.sum()),
      score,
      shares.tolist(),
      self._blocks[k],
      first,
      limit,
    )

  def by_answer(self, spans: Sequence[int]) -> dict[str, list[int]]:
    """Groups spans by their normalized texts."""
    groups: dict[str, list[int]] = {}
    for span in spans:
      key = normalize_answer(self._read(span)[1], self._language)
      groups.setdefault(key, []).append(span)
    return groups


def _best_spans(
  run: TrainedRun,
  question: str,
  hits: Sequence[Hit],
  totals: Float32[np.ndarray, "k l w"],
  answer: str | None,
) -> Result:
  """Groups a question's spans by the answers that they give."""
  spans = _Spans(run, [hit.block for hit in hits], totals)
  log_p = spans.log_p
  order = np.argsort(-log_p, axis=None, kind="stable").tolist()
  order = order[: np.isfinite(log_p).sum()]
  groups = spans.by_answer(order[: run.config.num_spans])
  answers = [spans.answer(group) for group in groups.values()]
  if run.config.rank_answers_by == "probability":
    answers.sort(key=lambda one: -one.probability)
  chosen = answers[0] if answers else Answer("", 0.0)
  if answer is not None:
    key = normalize_answer(answer, run.corpus.language)
    # The answer may not be among the best spans, which form `answers`.
    group = groups.get(key) or spans.by_answer(order).get(key)
    chosen = spans.answer(group) if group else Answer(answer, 0.0)
  read = []
  for k, hit in enumerate(hits):
    block_log_p, best, likelihood = log_p.reshape(len(hits), -1)[k], None, 0.0
    share = chosen.shares[k] if chosen.shares else None
    if weight := float(np.exp(logsumexp(block_log_p))):
      best = spans.answer([k * block_log_p.size + int(block_log_p.argmax())])
      best = best._replace(probability=best.probability / weight, shares=())
      likelihood = chosen.probability * (share or 0.0) / weight
    read.append(
      dataclasses.replace(
        hit, weight=weight, likelihood=likelihood, share=share, best=best
      )
    )
  return Result(
    text=question,
    kind=QUESTION,
    answer=chosen.text if answer is None else answer,
    probability=chosen.probability,
    answers=answers,
    hits=read,
    source=run.source,
    answer_is_given=answer is not None,
  )
