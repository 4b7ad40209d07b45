"""Explains fillings and answers of a run by the blocks they come from.

A sentence with [MASK] is filled in as in pre-training. The candidates are the
null block and the blocks that a search with the snapshot's query tower returns,
scored again with the checkpoint's parameters, and

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
from scipy.special import softmax

from realm_jax.answers.normalize import normalize_answer
from realm_jax.console import Progress
from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.masked_sentences import (
  NULL_BLOCK_ALONE,
  ExplanationError,
  Reading,
  best_fillings,
  contains_text,
  kind_of,
  masked_query,
  read_masks,
)
from realm_jax.evaluation.result import Answer, Hit, Result
from realm_jax.evaluation.run import SENTENCE, TrainedRun
from realm_jax.evaluation.search import search_as_trained
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt
from realm_jax.storage.json_files import require_unicode
from realm_jax.text.vocabulary import MASK
from realm_jax.training.stages.pretraining import Pretraining


def explain(run: TrainedRun, text: str, answer: str | None = None) -> Result:
  """Explains what a run fills in or answers.

  Args:
    run: Run of pre-training for sentences, or of open QA for questions.
    text: Sentence with [MASK], or question.
    answer: Answer y whose probability is explained; a sentence then must have
      one place to fill in. None explains the best answer.

  Raises:
    CheckpointError: The run was not trained for such texts.
    RealmError: The text has no words, or the answer does not fit it.

  Example:
    >>> run = realm_jax.load("runs/realm")
    >>> result = explain(run, "Ada was born in [MASK].", "Velt")
    >>> null = result.hits[0]  # The candidate without words.
    >>> null.block.row, null.utility
    (-1, 0.0)
  """
  for value in (text, answer or ""):
    require_unicode(value, f"the text {value!r}")
  kind = kind_of(text)
  run.require_kind(kind)
  explained = _of_sentence if kind == SENTENCE else _of_question
  result, token_ids = explained(run, text, answer)
  hits, notes, words = [], [*result.notes], run.vocabulary
  for hit in result.hits:
    is_copy = contains_text(
      hit.block.body_token_ids, token_ids, words.mask_id, run.config.max_masks
    )
    hits.append(dataclasses.replace(hit, contains_text=is_copy))
  if copies := [hit.block.id for hit in hits if hit.contains_text]:
    notes.append(
      f"the sentence occurs word for word in {', '.join(copies)}: trivial "
      "retrieval, which training leaves out"
    )
  return dataclasses.replace(result, hits=hits, notes=notes)


def _of_question(
  run: TrainedRun, text: str, answer: str | None
) -> tuple[Result, Sequence[int]]:
  """Returns the answer to a question, and the question in wordpieces."""
  words, room = run.vocabulary, run.config.query_length - 2
  token_ids = words.encode(text)
  if answer is not None and not normalize_answer(answer, run.corpus.language):
    raise ExplanationError(f"the answer {answer!r} has no words")
  (result,) = ask(run, [text], answer=answer)
  notes = words.notes(text)
  if len(token_ids) > room:
    notes.append(
      f"the question has {len(token_ids)} wordpieces; the model reads the "
      f"first {room}"
    )
  if result.answer and not result.probability:
    notes.append(
      f"no block that was read has the answer {result.answer!r}, so that "
      "p(y|x) is 0, and shares are not defined"
    )
  result = dataclasses.replace(
    result,
    answers=result.answers[: run.config.num_fillings],
    notes=notes,
    read=words.decode(token_ids[:room]),
    wordpieces=[words.pieces[i] for i in words.encode(result.answer)],
  )
  return result, token_ids


def _of_sentence(
  run: TrainedRun, text: str, answer: str | None
) -> tuple[Result, Sequence[int]]:
  """Returns the fillings of a sentence, and the sentence in wordpieces."""
  words = run.vocabulary
  masked = masked_query(run, text, answer)
  reading = read_masks(run, masked.query, masked.positions)
  best_ids, by_candidate = best_fillings(reading, run.config.num_fillings)
  fillings = []
  for token_ids, log_p in zip(best_ids.tolist(), by_candidate, strict=True):
    total, shares = reading.marginalize(log_p)
    fillings.append(
      Answer(
        masked.filling_text(words, token_ids),
        math.exp(total),
        total,
        shares.tolist(),
        without_retrieval=math.exp(log_p[0]),
      )
    )
  target_ids = masked.target_ids or best_ids[0].tolist()
  total, hits = _candidates(run, reading, target_ids)
  for k, alone in enumerate(reading.log_probs):
    likely = masked.filling_text(words, alone.argmax(axis=-1).tolist())
    best = Answer(likely, math.exp(alone.max(axis=-1).sum()))
    hits[k] = dataclasses.replace(hits[k], best=best)
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
  result = Result(
    text=text,
    kind=SENTENCE,
    answer=answer or fillings[0].text,
    probability=math.exp(total),
    answers=fillings,
    hits=hits,
    source=run.source,
    answer_is_given=answer is not None,
    utility=total - sum(hits[0].token_log_likelihoods or ()),
    notes=notes,
    read=words.decode(masked.query[1 : masked.num_read + 1].tolist()),
    wordpieces=[words.pieces[i] for i in target_ids],
  )
  return result, masked.token_ids


def _candidates(
  run: TrainedRun, reading: Reading, target_ids: Sequence[int]
) -> tuple[float, list[Hit]]:
  """Returns log p(y|x), and the candidates with their shares of it."""
  by_token = reading.log_probs[:, np.arange(len(target_ids)), target_ids]
  log_likelihoods = by_token.sum(axis=-1)
  total, shares = reading.marginalize(log_likelihoods)
  hits = map(
    Hit,
    map(run.block, reading.rows.tolist()),
    reading.scores.tolist(),
    softmax(reading.scores).tolist(),
  )
  return total, [
    dataclasses.replace(
      hit,
      weight=hit.probability,
      likelihood=math.exp(log_likelihoods[k]),
      share=float(shares[k]),
      token_log_likelihoods=by_token[k].tolist(),
      utility=float(log_likelihoods[k] - log_likelihoods[0]),
    )
    for k, hit in enumerate(hits)
  ]


def block_use(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Pretraining,
  num_sampled: PositiveInt = 100,
) -> Sequence[dict[str, Any]]:
  """Returns the most useful block of each of some training sentences.

  The same code as in training chooses the candidates. If the source of a
  sentence has many copies, null blocks replace the missing candidates; the null
  block is returned if no other block is more useful.

  Args:
    config: Run of pre-training.
    data: Task of the masked sentences.
    stage: Stage, which determines how candidates are retrieved.
    num_sampled: Number of sentences.

  Returns:
    For each sentence, the `sentence`, the masked `answer`, and the block: its
    id as `block`, its `title`, its `probability` p(z|x), its `utility`
    log p(y|z,x) − log p(y|null,x), and its `reward` r(z).

  Raises:
    CheckpointError: The run is not one of pre-training.
    ExplanationError: The run has too few candidates.
    TaskError: The task has no masked sentences.
  """
  # Imports seqio, which other explanations do not need.
  from realm_jax.inputs.batches import stream_batches

  retrieval = stage.retrieval
  if retrieval is None:
    raise ExplanationError(NULL_BLOCK_ALONE)
  run = TrainedRun.load(config)
  run.require_kind(SENTENCE)
  decode, uses = run.vocabulary.decode, []
  context = run.stage_context(retrieval)
  stream = stream_batches(dataclasses.replace(data, batch_size=1))
  with contextlib.closing(stream), Progress("sentences") as progress:
    for batch in itertools.islice(stream, num_sampled):
      query, positions, weights, targets = (
        batch.array(name)[0]
        for name in ("query", "mask_positions", "mask_weights", "mask_targets")
      )
      targets, positions = targets[weights > 0], positions * (weights > 0)
      retrieved = search_as_trained(run, stage, batch).rows
      rows = stage.candidate_rows(batch, retrieved, context)[0]
      rows = np.array([NULL_ROW, *rows[int(stage.null_block) :]])
      reading = read_masks(run, query, positions, rows=rows)
      _, (_, *others) = _candidates(run, reading, targets.tolist())
      best = max(others, key=lambda hit: hit.utility or 0.0)
      uses.append(
        {
          "sentence": decode(query[query != 0][1:-1].tolist()),
          "answer": decode(targets.tolist()),
          "block": best.block.id,
          "title": best.block.title,
          "probability": best.probability,
          "utility": best.utility,
          "reward": best.reward,
        }
      )
      progress.advance()
  return uses
