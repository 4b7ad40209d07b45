"""Explains a question of open QA: which blocks its answer comes from.

The probabilities are those of a sum over blocks,

    p(y|x) = Σ_z p(z|x) p(y|z,x),

with p(z|x) the softmax of f(x,z) over the blocks that are read, and p(y|z,x)
the softmax over the spans of that one block, summed over the spans that give
y: those whose words, normalized as for exact match, are the same. The released
reader, `realm_jax.ask` and training add f(x,z) to the span's score and take one
softmax over the spans of all blocks, which weighs a block by its spans' scores,
too; that probability of an answer is reported beside.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax, logsumexp

from realm_jax.evaluation.explaining import programs
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.marginal import Marginal, marginalize
from realm_jax.evaluation.explaining.masked import verbatim_notes
from realm_jax.evaluation.explaining.masked_text import VerbatimSentence
from realm_jax.evaluation.explaining.results import (
  Block,
  Candidate,
  CandidateAnswer,
  Explanation,
  Filling,
  finite,
)
from realm_jax.evaluation.explaining.span_texts import SpanTexts
from realm_jax.evaluation.ranking import BlockRanker, Ranking
from realm_jax.evaluation.trained_model import TrainedModel, whole_batch
from realm_jax.generations.loading import Generation
from realm_jax.partitioning import sharding
from realm_jax.text.answers import normalize_answer


@dataclasses.dataclass(frozen=True)
class _Spans:
  """Log probabilities of the spans of the blocks read, as arrays [k l w].

  Attributes:
    given_block: log p(s|z,x); −∞ where there is no span.
    together: log p(z|x) + log p(s|z,x).
    released: Logarithm of the softmax over the spans of all blocks.
  """

  given_block: Float[np.ndarray, "k l w"]
  together: Float[np.ndarray, "k l w"]
  released: Float[np.ndarray, "k l w"]

  @classmethod
  def of(
    cls, logits: Float[np.ndarray, "k l w"], scores: Float[np.ndarray, " k"]
  ) -> "_Spans":
    """Returns those of spans with these scores, in blocks with these f(x,z)."""
    total = logsumexp(logits, axis=(1, 2), keepdims=True)
    # A block without a span has none to divide.
    given_block = np.where(np.isneginf(logits), -np.inf, logits - total)
    block_scores = np.asarray(scores, np.float64)
    log_prior = log_softmax(block_scores)[:, None, None]
    sums = logits + block_scores[:, None, None]
    return cls(given_block, log_prior + given_block, sums - logsumexp(sums))


class _Group(NamedTuple):
  """The spans that give one answer, as indices into the flattened [k l w].

  Attributes:
    best: The most likely of them.
    places: All of them.
    probability: Σ_z p(z|x) p(y|z,x).
  """

  best: int
  places: Int[np.ndarray, " n"]
  probability: float


class QuestionExplainer:
  """Explains answers to questions with one checkpoint and one generation.

  Args:
    model: Checkpoint of a run of open QA.
    generation: Generation to search.
    num_read: Number of blocks that are retrieved and read.
    index_scores: Whether the run was trained on the index's own scores (BM25).
    num_answers: Number of the best answers to report.

  Raises:
    SearchError: There are not that many blocks.
  """

  def __init__(
    self,
    model: TrainedModel,
    generation: Generation,
    *,
    num_read: int,
    index_scores: bool,
    num_answers: int,
  ):
    self._model, self._generation = model, generation
    self._corpus = generation.corpus
    self._num_answers = num_answers
    self._ranker = BlockRanker(
      model, generation, num_searched=num_read, index_scores=index_scores
    )
    self._read = sharding.jit_on_mesh(
      programs.span_logits_of_first,
      model.models.require_reader(),
      mesh=model.mesh,
      out_shardings=sharding.replicated(model.mesh),
    )

  def explain(self, text: str, answer: str | None) -> Explanation:
    """Explains an answer, the most likely one if none is given.

    Raises:
      ExplanationError: The question, or the answer, has no words.
    """
    words, room = self._corpus.vocabulary, self._model.source.query_length - 2
    token_ids = words.encode(text)
    if not token_ids:
      raise ExplanationError(f"the question {text!r} has no words")
    if answer is not None and not normalize_answer(answer):
      raise ExplanationError(f"the answer {answer!r} has no words")
    ranking, logits = self._read_blocks(token_ids[:room])
    spans = _Spans.of(logits, ranking.scores)
    texts = [SpanTexts(self._corpus, row) for row in ranking.rows.tolist()]
    answers = self._answers(texts, spans)
    shown = {
      key: _text_of(texts, spans, group.best)
      for key, group in itertools.islice(answers.items(), self._num_answers)
    }
    if answer is not None:
      explained, key = answer, normalize_answer(answer)
    else:
      key, explained = next(iter(shown.items()), ("", ""))
    places = answers[key].places if key in answers else np.zeros(0, np.int64)
    inside = np.full(logits.size, -np.inf)
    inside[places] = spans.given_block.reshape(-1)[places]
    marginal = marginalize(
      ranking.scores, logsumexp(inside.reshape(logits.shape), axis=(1, 2))
    )
    verbatim = VerbatimSentence(token_ids, words.mask_id, 1)
    candidates = [
      self._candidate(k, ranking, texts[k], spans, marginal, verbatim)
      for k in range(len(ranking.rows))
    ]
    released = spans.released.reshape(-1)
    notes = verbatim_notes(candidates)
    if len(token_ids) > room:
      notes.append(
        f"the question has {len(token_ids)} wordpieces, of which the model "
        f"reads the first {room}"
      )
    if marginal.shares is None and explained:
      notes.append(
        f"no block that was read has the answer {explained!r}, so that p(y|x) "
        "is 0, and shares and r(z) are not defined"
      )
    return Explanation(
      text=text,
      kind="question",
      read=words.decode(list(token_ids[:room])),
      answer=explained,
      answer_is_given=answer is not None,
      wordpieces=[words.pieces[i] for i in words.encode(explained)],
      log_likelihood=finite(marginal.log_likelihood),
      log_likelihood_null=None,
      utility=None,
      candidates=candidates,
      fillings=[
        Filling(
          text,
          answers[key].probability,
          by_released_reader=float(np.exp(released[answers[key].places]).sum()),
        )
        for key, text in shown.items()
      ],
      unaided=None,
      notes=notes,
      checkpoint=self._model.step,
      generation=self._generation.step,
    )

  def _read_blocks(
    self, token_ids: Sequence[int]
  ) -> tuple[Ranking, Float[np.ndarray, "k l w"]]:
    """Returns the blocks of a question, best first, and its spans' scores."""
    words, source = self._corpus.vocabulary, self._model.source
    queries = np.zeros((whole_batch(1), source.query_length), np.int32)
    queries[:, : len(token_ids) + 2] = [words.cls_id, *token_ids, words.sep_id]
    rankings = self._ranker.rank(queries)
    batch = sharding.to_devices(
      {
        "query": queries,
        "candidates": self._corpus.gather(rankings.rows, source.block_length),
      },
      self._model.mesh,
    )
    logits = self._read(self._model.params["reader"], **batch)
    return rankings.of_query(0), np.asarray(logits, np.float64)

  def _answers(
    self, texts: Sequence[SpanTexts], spans: _Spans
  ) -> dict[str, _Group]:
    """Returns the spans of each normalized answer, the most likely first."""
    size = spans.together[0].size
    groups: dict[str, list[Int[np.ndarray, " n"]]] = {}
    for k, block in enumerate(texts):
      is_span = np.isfinite(spans.given_block[k])
      for key, places in block.normalized(is_span).items():
        groups.setdefault(key, []).append(k * size + places)
    flat = spans.together.reshape(-1)
    made = {}
    for key, parts in groups.items():
      places = np.concatenate(parts)
      best = int(places[flat[places].argmax()])
      made[key] = _Group(best, places, float(np.exp(flat[places]).sum()))
    ordered = sorted(made.items(), key=lambda item: -item[1].probability)
    return dict(ordered)

  def _candidate(
    self,
    k: int,
    ranking: Ranking,
    texts: SpanTexts,
    spans: _Spans,
    marginal: Marginal,
    verbatim: VerbatimSentence,
  ) -> Candidate:
    row, own = int(ranking.rows[k]), spans.given_block[k]
    best = None
    if np.isfinite(own.max()):
      start, extra = divmod(int(own.argmax()), own.shape[1])
      said = texts.of(start, extra + 1)
      best = CandidateAnswer(
        said.text, float(np.exp(own.max())), said.start_byte, said.limit_byte
      )
    return Candidate(
      source=Block.of(self._corpus, row),
      score=float(ranking.scores[k]),
      probability=float(np.exp(marginal.log_prior[k])),
      log_likelihood=finite(marginal.log_likelihoods[k]),
      token_log_likelihoods=(),
      share=marginal.share(k),
      utility=None,
      reward=marginal.reward(k),
      best=best,
      contains_sentence=verbatim.is_in(self._corpus.block(row).body_token_ids),
    )


def _text_of(texts: Sequence[SpanTexts], spans: _Spans, place: int) -> str:
  k, start, extra = np.unravel_index(place, spans.together.shape)
  return texts[int(k)].of(int(start), int(extra) + 1).text
