"""Answers to questions, and the blocks that they come from.

The reader scores the spans s of the blocks that are read, and training takes
one softmax of reader(s) + f(x, z) over all of them (ORQA, section 5). That is
a joint distribution of block and span, of which everything that is shown is a
part: p(y|x), the sum over the spans that give an answer y; p(z|x), the sum over
the spans of a block; and a block's share of y, the part of p(y|x) in the block.
"""

import dataclasses
import functools
import html
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy.special import logsumexp

from realm_jax.answers.normalize import normalize_answer
from realm_jax.answers.spans import widen_to_words
from realm_jax.errors import RealmError
from realm_jax.evaluation.run import RetrievedBlock, TrainedRun
from realm_jax.indexes.protocol import SearchError, SearchResult
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader


class Answer(NamedTuple):
  """An answer, and the place of its best span.

  Attributes:
    text: Answer as the block spells it.
    probability: p(y|x): the sum over the spans that give it.
    score: Score of its best span: the reader's plus the block's.
    block: Block of that span.
    start: Offset of its first character in the text of the block.
    limit: Offset after its last character.
    shares: The part of the probability in each block that was read; their sum
      is 1.
  """

  text: str
  probability: float
  score: float
  block: RetrievedBlock
  start: int
  limit: int
  shares: Sequence[float]


@dataclasses.dataclass(frozen=True, repr=False)
class Answered:
  """The answers of a question, and the blocks that were retrieved for it.

  Attributes:
    question: Question as it was asked.
    answers: Answers that differ once normalized, best first; empty if the
      blocks that were read have no words.
    blocks: Blocks that were retrieved, best first.
    read: Places in `blocks` of those that were read.
    posterior: p(z|x) of each block that was read, by retriever and reader.
    alone: Best span of each block that was read, with its probability given
      the block; None of a block without words.
    given: Answer that was asked about, if any; None if no span gives it.
  """

  question: str
  answers: Sequence[Answer]
  blocks: Sequence[RetrievedBlock]
  read: Sequence[int]
  retrieval_probability: Sequence[float]
  alone: Sequence[Answer | None]
  given: Answer | None = None

  @property
  def text(self) -> str:
    """Text of the best answer; empty if there is none."""
    return self.answers[0].text if self.answers else ""

  @property
  def probability(self) -> float:
    """Probability of the best answer; 0 if there is none."""
    return self.answers[0].probability if self.answers else 0.0

  def __repr__(self) -> str:
    return f"<{self.question!r}: {self.text!r} ({self.probability:.3f})>"

  def _repr_html_(self) -> str:
    """Returns the answers in their blocks as a table, for a notebook."""
    rows = ["<tr><th>answer<th>p(y|x)<th>document<th>text"]
    for text, probability, _, block, start, limit, _ in self.answers:
      parts = block.title, block.text[:start], text, block.text[limit:]
      title, before, marked, after = map(html.escape, parts)
      rows.append(
        f"<tr><td>{marked}<td>{probability:.3f}<td>{title}"
        f"<td>{before}<mark>{marked}</mark>{after}"
      )
    caption = f"<caption>{html.escape(self.question)}</caption>"
    return f"<table>{caption}{''.join(rows)}</table>"


def ask(
  run: TrainedRun, questions: Sequence[str], *, answer: str | None = None
) -> list[Answered]:
  """Answers questions from the blocks that are retrieved for them.

  Args:
    run: Run of open QA, whose configuration says how many blocks are read.
    questions: Questions, any number.
    answer: Answer to look for besides, in `Answered.given`.

  Raises:
    SearchError: More blocks are to be read than are retrieved.
    ValueError: A question has no words, or the blocks to read depend on its
      answers.
  """
  if run.config.candidates == "gold":
    raise RealmError(
      'CANDIDATES = "gold" reads the blocks that contain an answer, which is '
      "not known here; it is for `realm_jax.evaluate`"
    )
  answered = []
  token_ids = run.encode(questions)
  for start in range(0, len(questions), run.max_batch):
    own = slice(start, start + run.max_batch)
    found = run.search(token_ids[own], num_searched(run))
    answered += read(run, questions[own], token_ids[own], found, answer=answer)
  return answered


def num_searched(run: TrainedRun) -> int:
  """Returns how many blocks are retrieved for a question.

  Raises:
    CheckpointError: The run has no reader.
    SearchError: More blocks are to be read.
  """
  run.require_reader()
  num_blocks, config = run.snapshot.num_blocks, run.config
  number = min(config.num_searched, num_blocks)
  if config.num_read > number:
    raise SearchError(
      f"num_read={config.num_read} of num_searched={number} blocks; choose "
      f"NUM_READ from 1 to {number}, or raise NUM_SEARCHED (the corpus has "
      f"{num_blocks} blocks)"
    )
  return number


def read(
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  found: SearchResult,
  order: Int[np.ndarray, "b k"] | None = None,
  *,
  answer: str | None = None,
) -> list[Answered]:
  """Answers questions from the first blocks that were retrieved for them.

  `order` has the places of these blocks, those to read first; without it, the
  best are read.
  """
  if order is None:
    order = np.tile(np.arange(found.rows.shape[1]), (len(found.rows), 1))
  places = order[:, : run.config.num_read]
  rows, scores = (
    np.take_along_axis(array, places, axis=1)
    for array in (found.rows, found.scores)
  )
  logits = run.compute(
    span_logits,
    run.require_reader(),
    run.params["reader"],
    query=token_ids,
    blocks=run.gather(rows),
  )
  return [
    _answered(
      run,
      question,
      run.blocks(found, i),
      places[i].tolist(),
      logits[i] + scores[i][:, None, None],
      answer,
    )
    for i, question in enumerate(questions)
  ]


def span_logits(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  blocks: Int[Array, "b k l"],
) -> Float[Array, "b k l w"]:
  """Returns the reader's scores of spans, −∞ where there is none.

  The best of them, with the score of its block, is the choice of Google's and
  Hugging Face's readers, which choose the block of the best span and its place
  in the block separately: unless spans of two blocks have exactly equal scores,
  both are of one span.
  """
  joined, *bodies = reader.join(query, blocks)
  spans = reader.apply(
    {"params": params},
    sequences.padded(joined),
    *bodies,
    num_starts=blocks.shape[-1],
    method="spans",
  )
  return jnp.where(spans.is_span, spans.logits, -jnp.inf)


def span_texts(
  run: TrainedRun, row: int
) -> Callable[[int, int], tuple[str, int, int]]:
  """Returns a function that says what the spans of a block say.

  Of a span's first wordpiece and its width, it returns the text, widened to
  whole words, and its characters `[start, limit)` in the block's text.
  """
  block = run.content(row)
  body, ranges = block.body.encode(), block.byte_ranges
  is_continuation = run.vocabulary.is_continuation[block.body_token_ids]

  def span(start: int, width: int) -> tuple[str, int, int]:
    start, limit = widen_to_words(start, start + width, is_continuation)
    first, last = int(ranges[start, 0]), int(ranges[limit - 1, 1])
    text = body[first:last].decode()
    begin = len(body[:first].decode())
    return text, begin, begin + len(text)

  return span


_normalized = functools.lru_cache(maxsize=1 << 16)(normalize_answer)


def _answered(
  run: TrainedRun,
  question: str,
  blocks: Sequence[RetrievedBlock],
  places: Sequence[int],
  totals: Float32[np.ndarray, "k l w"],
  given: str | None,
) -> Answered:
  """Groups a question's spans by the answers that they give."""
  log_p = np.float64(totals)
  if np.isfinite(log_p).any():
    log_p -= logsumexp(log_p)
  chosen = [blocks[place] for place in places]
  texts = [span_texts(run, block.row) for block in chosen]

  def made(spans: Sequence[int]) -> Answer:
    """Returns the answer that spans give, the best one first."""
    by_block, start, extra = np.unravel_index(spans, log_p.shape)
    k = int(by_block[0])
    text, first, limit = texts[k](int(start[0]), int(extra[0]) + 1)
    p = np.exp(log_p.reshape(-1)[spans])
    shares = np.bincount(by_block, p, len(chosen)) / p.sum()
    score = float(totals.reshape(-1)[spans[0]])
    return Answer(
      text, float(p.sum()), score, chosen[k], first, limit, shares.tolist()
    )

  def grouped(spans: Sequence[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for span in spans:
      k, start, extra = map(int, np.unravel_index(span, log_p.shape))
      text = texts[k](start, extra + 1)[0]
      groups.setdefault(_normalized(text, run.corpus.language), []).append(span)
    return groups

  order = np.argsort(-log_p, axis=None, kind="stable").tolist()
  order = order[: np.isfinite(log_p).sum()]
  groups = grouped(order[: run.config.num_spans])
  answers = [made(spans) for spans in groups.values()]
  if run.config.rank_answers_by == "probability":
    answers.sort(key=lambda answer: -answer.probability)
  about = None
  if given is not None:
    key = normalize_answer(given, run.corpus.language)
    # Beyond the best spans, of which the answers are made.
    spans = groups.get(key) or grouped(order).get(key)
    about = made(spans) if spans else None
  retrieval_probability = np.exp(logsumexp(log_p, axis=(1, 2)))
  alone: list[Answer | None] = []
  for k, own in enumerate(log_p.reshape(len(chosen), -1)):
    best = None
    if retrieval_probability[k]:
      best = made([k * own.size + int(own.argmax())])
      given_block = best.probability / float(retrieval_probability[k])
      best = best._replace(probability=given_block)
    alone.append(best)
  return Answered(
    question,
    answers,
    blocks,
    places,
    retrieval_probability.tolist(),
    alone,
    about,
  )
