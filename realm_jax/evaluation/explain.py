"""Explains what a run fills in or answers: which blocks it comes from.

A sentence with [MASK] is filled in as in pre-training. The candidates are the
null block and the blocks that the snapshot's own query tower finds, scored
again with the checkpoint's parameters, and

    p(y|x) = Σ_z p(z|x) p(y|z,x),   p(z|x) = softmax of f(x,z)

(Guu et al. 2020, equation 1). Differentiating log p(y|x) by the scores gives
r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x) (section 3.3): the candidates whose scores
a gradient step would raise, and by how much. With the candidate's share
p(z|x) p(y|z,x) / p(y|x), r(z) is share(z) − p(z|x).

Any other text is a question, which is answered as by `ask`.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from realm_jax.answers.normalize import normalize_answer
from realm_jax.console import Progress
from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.masked_sentences import (
  NULL_BLOCK_ALONE,
  ExplanationError,
  best_fillings,
  contains_text,
  kind_of,
  masked_query,
  read_masks,
)
from realm_jax.evaluation.run import (
  SENTENCE,
  RetrievedBlock,
  RunConfig,
  TrainedRun,
)
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import Asked, PositiveInt
from realm_jax.storage.json_files import require_unicode
from realm_jax.text.wordpieces import MASK
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class Filling:
  """A filling of the masks, or an answer to a question.

  Attributes:
    text: Words.
    probability: p(y|x), or that given one candidate.
    without_retrieval: p(y|null,x) of a filling.
    start, limit: Characters of the block's text of an answer in it.
  """

  text: str
  probability: float
  without_retrieval: float | None = None
  start: int | None = None
  limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One candidate z, and its part in p(y|x), y being the answer explained.

  Attributes:
    block: The block, with its score and the retriever's probability.
    probability: p(z|x); of a question, by retriever and reader together.
    log_likelihood: log p(y|z,x); None where the block does not contain y.
    share: p(z|x) p(y|z,x) / p(y|x); None if p(y|x) is 0.
    best: What the reader finds most likely here; None in a block without text.
    contains_text: Whether the block contains the text word for word, so that
      its retrieval is trivial.
    token_log_likelihoods: log p(y_j|z,x) of each wordpiece of a filling.
    utility: log p(y|z,x) − log p(y|null,x); None of a question, for which
      there is no null block.
    reward: r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x), the derivative of log p(y|x)
      by f(x,z); None of a question.
  """

  block: RetrievedBlock
  probability: float
  log_likelihood: float | None
  share: float | None
  best: Filling | None
  contains_text: bool
  token_log_likelihoods: Sequence[float] = ()
  utility: float | None = None
  reward: float | None = None

  @property
  def likelihood(self) -> float:
    """p(y|z,x)."""
    own = self.log_likelihood
    return 0.0 if own is None else math.exp(own)


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
  """Why a run fills in, or answers, what it does.

  Attributes:
    text: Sentence or question, as it was given.
    kind: Which of the two it is.
    model_dir: Directory of the run.
    checkpoint: Step of the checkpoint.
    snapshot: Step of the snapshot that was searched.
    read: The query in wordpieces, as the model read it.
    answer: y, the answer that the figures are of; empty if there is none.
    answer_is_given: Whether the answer was given, or is the best one.
    wordpieces: Wordpieces of the answer.
    log_likelihood: log p(y|x); None if no candidate contains the answer.
    candidates: The null block of a masked sentence, then blocks by score.
    fillings: The best fillings or answers.
    notes: What a reader of the figures should know.
    log_likelihood_null: log p(y|null,x); None of a question.
    utility: log p(y|x) − log p(y|null,x); None of a question.
  """

  text: str
  kind: Asked
  model_dir: str
  checkpoint: int
  snapshot: int
  read: str
  answer: str
  answer_is_given: bool
  wordpieces: Sequence[str]
  log_likelihood: float | None
  candidates: Sequence[Candidate]
  fillings: Sequence[Filling]
  notes: list[str]
  log_likelihood_null: float | None = None
  utility: float | None = None

  @property
  def probability(self) -> float:
    """p(y|x)."""
    total = self.log_likelihood
    return 0.0 if total is None else math.exp(total)

  def __repr__(self) -> str:
    return f"<{self.text!r}: {self.answer!r} ({self.probability:.3g})>"

  def to_json(self) -> dict[str, Any]:
    """Returns the same as values that JSON can hold."""
    return dataclasses.asdict(self)


def explain(
  run: TrainedRun, text: str, answer: str | None = None
) -> Explanation:
  """Explains what the run fills in, or answers.

  Args:
    run: Run of pre-training for sentences, of open QA for questions.
    text: Sentence with [MASK], or question.
    answer: Answer y whose probability is explained; for a sentence, of its one
      place to fill in. None takes the best one.

  Raises:
    CheckpointError: The run was not trained for such texts.
    RealmError: The text has no words, or the answer does not fit it.
  """
  for one in (text, answer or ""):
    require_unicode(one, f"the text {one!r}")
  kind = kind_of(text)
  run.require_kind(kind)
  figures = _of_sentence if kind == SENTENCE else _of_question
  explained = Explanation(
    text=text,
    kind=kind,
    model_dir=str(run.model_dir),
    checkpoint=run.step,
    snapshot=run.snapshot.step,
    answer_is_given=answer is not None,
    **figures(run, text, answer),
  )
  copies = [one.block.id for one in explained.candidates if one.contains_text]
  if copies:
    explained.notes.append(
      f"the sentence occurs word for word in {', '.join(copies)}: trivial "
      "retrieval, which training leaves out"
    )
  return explained


def _of_question(
  run: TrainedRun, text: str, answer: str | None
) -> dict[str, Any]:
  words, room = run.vocabulary, run.config.query_length - 2
  token_ids = words.encode(text)
  if answer is not None and not normalize_answer(answer, run.corpus.language):
    raise ExplanationError(f"the answer {answer!r} has no words")
  (answered,) = ask(run, [text], answer=answer)
  explained = answered.given
  if answer is None and answered.answers:
    explained = answered.answers[0]
  candidates = []
  for k, place in enumerate(answered.read):
    block, of_block = answered.blocks[place], answered.retrieval_probability[k]
    alone, share, given_block = answered.alone[k], None, 0.0
    if explained is not None:
      share = explained.shares[k]
      given_block = explained.probability * share / of_block if share else 0.0
    body = run.content(block.row).body_token_ids
    candidates.append(
      Candidate(
        block=block,
        probability=of_block,
        log_likelihood=float(np.log(given_block)) if given_block else None,
        share=share,
        best=None
        if alone is None
        else Filling(
          alone.text, alone.probability, start=alone.start, limit=alone.limit
        ),
        contains_text=contains_text(body, token_ids, words.mask_id, 1),
      )
    )
  notes = words.notes(text)
  if len(token_ids) > room:
    notes.append(
      f"the question has {len(token_ids)} wordpieces; the model reads the "
      f"first {room}"
    )
  shown = answer or ("" if explained is None else explained.text)
  if explained is None and shown:
    notes.append(
      f"no block that was read has the answer {shown!r}, so that p(y|x) is 0, "
      "and shares are not defined"
    )
  total = None if explained is None else float(np.log(explained.probability))
  return {
    "read": words.decode(token_ids[:room]),
    "answer": shown,
    "wordpieces": [words.pieces[i] for i in words.encode(shown)],
    "log_likelihood": total,
    "candidates": candidates,
    "fillings": [
      Filling(one.text, one.probability)
      for one in answered.answers[: run.config.num_fillings]
    ],
    "notes": notes,
  }


def _of_sentence(
  run: TrainedRun, text: str, answer: str | None
) -> dict[str, Any]:
  config, words = run.config, run.vocabulary
  masked = masked_query(run, text, answer)
  found = read_masks(run, masked.query, masked.positions)
  log_prior = found.log_prior
  best_ids, by_candidate = best_fillings(found, config.num_fillings)
  fillings = [
    Filling(
      masked.filling_text(words, token_ids),
      float(np.exp(logsumexp(log_prior + own))),
      float(np.exp(own[0])),
    )
    for token_ids, own in zip(best_ids.tolist(), by_candidate, strict=True)
  ]
  target_ids = masked.target_ids or best_ids[0].tolist()
  by_token = found.log_probs[:, np.arange(len(target_ids)), target_ids]
  totals = by_token.sum(axis=-1)
  log_likelihood, shares, rewards = found.marginalize(totals)
  candidates = []
  for k, row in enumerate(found.rows.tolist()):
    prior, alone = float(np.exp(log_prior[k])), found.log_probs[k]
    likely = masked.filling_text(words, alone.argmax(axis=-1).tolist())
    candidates.append(
      Candidate(
        block=run.block(row, float(found.scores[k]), prior),
        probability=prior,
        log_likelihood=float(totals[k]),
        share=float(shares[k]),
        best=Filling(likely, float(np.exp(alone.max(axis=-1).sum()))),
        contains_text=row != NULL_ROW
        and contains_text(
          run.content(row).body_token_ids,
          masked.token_ids,
          words.mask_id,
          config.max_masks,
        ),
        token_log_likelihoods=by_token[k].tolist(),
        utility=float(totals[k] - totals[0]),
        reward=float(rewards[k]),
      )
    )
  notes = words.notes(text.replace(MASK, " "))
  if masked.num_read < len(masked.token_ids):
    notes.append(
      f"the sentence has {len(masked.token_ids)} wordpieces; the model reads "
      f"{masked.num_read}, around the masks"
    )
  if words.unk_id in (masked.target_ids or ()):
    notes.append(
      "the answer has words that the vocabulary lacks; the model reads them as "
      "[UNK]"
    )
  return {
    "read": words.decode(masked.query[1 : masked.num_read + 1].tolist()),
    "answer": answer or fillings[0].text,
    "wordpieces": [words.pieces[i] for i in target_ids],
    "log_likelihood": log_likelihood,
    "candidates": candidates,
    "fillings": fillings,
    "notes": notes,
    "log_likelihood_null": float(totals[0]),
    "utility": log_likelihood - float(totals[0]),
  }


def block_use(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Pretraining,
  num_sampled: PositiveInt = 100,
) -> Sequence[dict[str, Any]]:
  """Returns the most useful block of each of some training sentences.

  The same code as in training chooses the candidates. Where a sentence's block
  has many copies, the null block takes the last places, and it is named if no
  other block is more useful.

  Args:
    config: Run of pre-training.
    data: Task of the masked sentences.
    stage: Stage that says how candidates are retrieved.
    num_sampled: Number of sentences.

  Returns:
    For each the `sentence`; the `answer`, which is masked; the `block`, by
    name, and its `title`; its `probability` p(z|x), its `utility`, log p(y|z,x)
    − log p(y|null,x), and its `reward` r(z).

  Raises:
    CheckpointError: The run is not of pre-training.
    ExplanationError: It has too few candidates.
    TaskError: The task gives no masked sentences.
  """
  # seqio, which explanations of given texts do without.
  from realm_jax.inputs.batches import stream_batches

  retrieval = stage.retrieval
  if retrieval is None:
    raise ExplanationError(NULL_BLOCK_ALONE)
  run = TrainedRun.load(config)
  run.require_kind(SENTENCE)
  decode, found = run.vocabulary.decode, []
  context = run.stage_context(retrieval)
  stream = stream_batches(dataclasses.replace(data, batch_size=1))
  with contextlib.closing(stream), Progress("sentences") as progress:
    for batch in itertools.islice(stream, num_sampled):
      query, positions, weights, targets = (
        batch.array(name)[0]
        for name in ("query", "mask_positions", "mask_weights", "mask_targets")
      )
      targets, positions = targets[weights > 0], positions * (weights > 0)
      retrieved = run.search_as_trained(stage, batch).rows
      rows = stage.candidate_rows(batch, retrieved, context)[0]
      rows = np.array([NULL_ROW, *rows[int(stage.null_block) :]])
      read = read_masks(run, query, positions, rows=rows)
      given = read.log_probs[:, np.arange(len(targets)), targets].sum(axis=1)
      _, shares, rewards = read.marginalize(given)
      best = 1 + int(given[1:].argmax())
      probability = float(shares[best] - rewards[best])
      row, score = int(read.rows[best]), float(read.scores[best])
      block = run.block(row, score, probability)
      found.append(
        {
          "sentence": decode(query[query != 0][1:-1].tolist()),
          "answer": decode(targets.tolist()),
          "block": block.id,
          "title": block.title,
          "probability": probability,
          "utility": float(given[best] - given[0]),
          "reward": float(rewards[best]),
        }
      )
      progress.advance()
  return found
