"""Answers of a reader that points at spans of the blocks.

The reader scores the spans s of the blocks that are read, and training takes
one softmax of reader(s) + f(x, z) over all of them (ORQA, section 5): a joint
distribution of block and span. Everything that is shown is a part of it: p(y|x)
is the sum over the spans that give an answer y, p(z|x) the sum over the spans
of a block, and a block's share of y the part of p(y|x) in the block.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy.special import logsumexp

from realm_jax.answers.normalize import normalize_answer
from realm_jax.answers.spans import widen_to_words
from realm_jax.evaluation.answered import Answer, Answered, answer_from_blocks
from realm_jax.evaluation.run import RetrievedBlock, TrainedRun
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models.packing import padded_inputs
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader


@answer_from_blocks.register
def answer_from_spans(
  reader: BertReader,
  run: TrainedRun,
  questions: Sequence[str],
  token_ids: Int32[np.ndarray, "b q"],
  found: SearchResult,
  places: Int[np.ndarray, "b k"],
  given: str | None = None,
) -> list[Answered]:
  """Answers questions by spans: see `answer_from_blocks`."""
  rows, scores = (
    np.take_along_axis(array, places, axis=1)
    for array in (found.rows, found.scores)
  )
  logits = run.compute(
    span_logits,
    reader,
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
      given,
    )
    for i, question in enumerate(questions)
  ]


def span_logits(
  reader: BertReader,
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
  spans = reader.apply(
    {"params": params},
    padded_inputs(reader.join(query, blocks)),
    num_starts=blocks.shape[-1],
    method="spans",
  )
  return jnp.where(spans.is_span, spans.logits, -jnp.inf)


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
  contents = [run.content(block.row) for block in chosen]
  bodies = [content.body.encode() for content in contents]
  byte_ranges = [content.byte_ranges for content in contents]
  is_continuation = [
    run.vocabulary.is_continuation[content.body_token_ids]
    for content in contents
  ]

  def said(span: int) -> tuple[int, str, int, int]:
    """Returns the place of a span's block in `chosen`, and what the span says.

    This is its text, widened to whole words, and the text's characters
    `[start, limit)` in the block.
    """
    k, start, extra = map(int, np.unravel_index(span, log_p.shape))
    start, limit = widen_to_words(start, start + extra + 1, is_continuation[k])
    first = int(byte_ranges[k][start, 0])
    last = int(byte_ranges[k][limit - 1, 1])
    text = bodies[k][first:last].decode()
    begin = len(bodies[k][:first].decode())
    return k, text, begin, begin + len(text)

  def made(spans: Sequence[int]) -> Answer:
    """Returns the answer that spans give, the best one first."""
    k, text, first, limit = said(spans[0])
    by_block = np.unravel_index(spans, log_p.shape)[0]
    p = np.exp(log_p.reshape(-1)[spans])
    shares = np.bincount(by_block, p, len(chosen)) / p.sum()
    score = float(totals.reshape(-1)[spans[0]])
    return Answer(
      text, float(p.sum()), score, shares.tolist(), chosen[k], first, limit
    )

  def grouped(spans: Sequence[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for span in spans:
      key = normalize_answer(said(span)[1], run.corpus.language)
      groups.setdefault(key, []).append(span)
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
    # Also beyond the best spans, which the answers are made of.
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
