"""Explains what a run fills in or answers: which blocks it comes from.

A sentence with [MASK] is filled in as in pre-training. The candidates are the
null block and the blocks that the generation's own query tower finds, scored
again with the checkpoint's parameters, and

    p(y|x) = Σ_z p(z|x) p(y|z,x),   p(z|x) = softmax of f(x,z)

(Guu et al. 2020, equation 1). Differentiating log p(y|x) by the scores gives
r(z) = [p(y|z,x) / p(y|x) − 1] p(z|x) (section 3.3): the candidates whose scores
a gradient step would raise, and by how much. With the candidate's share
p(z|x) p(y|z,x) / p(y|x), r(z) is share(z) − p(z|x).

Any other text is a question, whose answers are those of `answers.ask`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.core import meta
from jaxtyping import Array, Float, Int, Int32
from scipy.special import log_softmax, logsumexp

from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointStore,
  locate,
)
from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation import answers
from realm_jax.evaluation.explanation import (
  Candidate,
  Explanation,
  ExplanationError,
  Filling,
  Span,
  Unaided,
)
from realm_jax.evaluation.masked_text import (
  MaskedQuery,
  contains_text,
  is_masked,
  masked_query,
)
from realm_jax.evaluation.run import Run
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.partitioning import sharding
from realm_jax.storage.access import require_readable
from realm_jax.text.answers import normalize_answer
from realm_jax.text.wordpieces import WordpieceVocabulary

MASKED_LM, SPAN = "masked_lm_head", "span_head"
# Fillings of each candidate that compete for the best under the sum.
_NUM_PROPOSED = 64


def explain(
  run: Run,
  text: str,
  answer: str | None = None,
  *,
  baseline: Run | None = None,
) -> Explanation:
  """Explains what the run fills in, or answers.

  Args:
    run: Run of pre-training for sentences, of open QA for questions.
    text: Sentence with [MASK], or question.
    answer: Answer y whose probability is explained; for a sentence, of its one
      place to fill in. None takes the best one.
    baseline: Another model, which fills in the sentence without retrieval; see
      `load_baseline`.

  Raises:
    ExplanationError: The text has no words, or does not fit this run; or the
      answer does not fit the text.
  """
  if not text.strip():
    raise ExplanationError(
      "the sentence is empty; write one with [MASK], or a question"
    )
  if is_masked(text):
    require_masked_lm_head(run)
    return fill(run, text, answer, baseline=baseline)
  if baseline is not None:
    raise ExplanationError(f"{text!r} has no [MASK], which a baseline fills in")
  _require_span_head(run, text)
  return _explain_question(run, text, answer)


# --- Questions --------------------------------------------------------------


def _explain_question(run: Run, text: str, answer: str | None) -> Explanation:
  """Explains an answer, the best one if none is given."""
  words, room = run.vocabulary, run.config.query_length - 2
  token_ids = words.encode(text)
  if not token_ids:
    raise ExplanationError(f"the question {text!r} has no words")
  if answer is not None and not normalize_answer(answer):
    raise ExplanationError(f"the answer {answer!r} has no words")
  (answered,) = answers.ask(run, [text], answer=answer)
  explained = answered.given
  if answer is None and answered.answers:
    explained = answered.answers[0]
  candidates = []
  for k, place in enumerate(answered.read):
    block, posterior = answered.blocks[place], answered.posterior[k]
    alone, share, given_block = answered.alone[k], None, 0.0
    if explained is not None:
      share = explained.shares[k]
      given_block = explained.probability * share / posterior if share else 0.0
    candidates.append(
      Candidate(
        block=block,
        probability=posterior,
        log_likelihood=_log(given_block),
        token_log_likelihoods=(),
        share=share,
        utility=None,
        reward=None,
        best=None
        if alone is None
        else Span(alone.text, alone.probability, alone.start, alone.limit),
        contains_text=contains_text(
          run.body(block.row).token_ids, token_ids, words.mask_id, 1
        ),
      )
    )
  notes = _verbatim_notes(candidates)
  if len(token_ids) > room:
    notes.append(
      f"the question has {len(token_ids)} wordpieces, of which the model reads "
      f"the first {room}"
    )
  shown = answer or ("" if explained is None else explained.text)
  if explained is None and shown:
    notes.append(
      f"no block that was read has the answer {shown!r}, so that p(y|x) is 0, "
      "and shares are not defined"
    )
  fillings = answered.answers[: run.config.num_fillings]
  return Explanation(
    text=text,
    kind="question",
    read=words.decode(token_ids[:room]),
    answer=shown,
    answer_is_given=answer is not None,
    wordpieces=[words.pieces[i] for i in words.encode(shown)],
    log_likelihood=_log(explained.probability) if explained else None,
    log_likelihood_null=None,
    utility=None,
    candidates=candidates,
    fillings=[Filling(one.text, one.probability) for one in fillings],
    unaided=None,
    notes=notes,
    checkpoint=run.step,
    generation=run.generation.step,
  )


def _log(probability: float) -> float | None:
  return float(np.log(probability)) if probability > 0 else None


# --- Sentences --------------------------------------------------------------


def marginalize(
  scores: Float[np.ndarray, " k"], log_likelihoods: Float[np.ndarray, " k"]
) -> tuple[float, Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
  """Sums p(z|x) p(y|z,x) over candidates, in log space.

  Args:
    scores: f(x,z).
    log_likelihoods: log p(y|z,x).

  Returns:
    log p(y|x); each candidate's share of it, with sum 1; and r(z), with sum 0.
  """
  log_prior = log_softmax(scores)
  joint = log_prior + log_likelihoods
  total = float(logsumexp(joint))
  shares = np.exp(joint - total)
  return total, shares, shares - np.exp(log_prior)


class Reading(NamedTuple):
  """What a run makes of a masked sentence, beside each of k candidates.

  Attributes:
    rows: Rows of the candidates, the null block first, then by score.
    scores: f(x,z), with the checkpoint's own towers.
    log_probs: log p(·|z,x) at each of m masks.
  """

  rows: Int[np.ndarray, " k"]
  scores: Float[np.ndarray, " k"]
  log_probs: Float[np.ndarray, "k m v"]


def read_masks(
  run: Run,
  query: Int32[np.ndarray, " q"],
  positions: Int32[np.ndarray, " m"],
  *,
  num_masks: int,
  source_hash: int | None = None,
) -> Reading:
  """Reads a sentence beside the null block and what is retrieved for it.

  Args:
    run: Run of pre-training.
    query: `[CLS] x [SEP]`, padded.
    positions: Positions of the masks in the query, padded with 0.
    num_masks: Number of the masks.
    source_hash: Content hash of the block that the sentence is from, which is
      no candidate; None of a free sentence.
  """
  num_kept = run.config.num_candidates - 1
  if num_kept < 1:
    raise ExplanationError(
      f"num_candidates={num_kept + 1}; want 2 or more, the null block and a "
      "block: change NUM_CANDIDATES"
    )
  # As in training, for copies of the source.
  spare = 0 if source_hash is None else 3
  found = run.search(query[None], num_kept + spare, current=False).rows[0]
  if source_hash is not None:
    found = found[run.corpus.content_hashes[found] != source_hash][:num_kept]
  rows = np.array([NULL_ROW, *found.tolist()])
  batch = {"query": query[None], "candidates": run.gather(rows)[None]}
  score = run.program(_scores, run.models.retriever)
  scores = score(run.params["retriever"], **batch)[0].astype(np.float64)
  batch["positions"] = positions[None]
  log_probs = _log_probs(run, batch)[:, :num_masks]
  order = np.array([0, *(1 + np.argsort(-scores[1:], kind="stable"))])
  return Reading(rows[order], scores[order], log_probs[order])


def _log_probs(
  run: Run, batch: Mapping[str, np.ndarray]
) -> Float[np.ndarray, "k m v"]:
  """Returns log p(·|z,x) at each mask of the one query of a batch."""
  read = run.program(_mask_logits, run.models.require_reader())
  logits = read(run.params["reader"], **batch)[0]
  return log_softmax(logits.astype(np.float64), axis=-1)


def fill(
  run: Run,
  text: str,
  answer: str | None = None,
  *,
  baseline: Run | None = None,
) -> Explanation:
  """Explains a filling of a sentence with [MASK].

  Arguments and errors are those of `explain`.
  """
  config, words = run.config, run.vocabulary
  if config.index_scores:
    raise ExplanationError(
      "a run on the index's own scores (INDEX_SCORES) has no query tower, and "
      "answers questions alone; ask one without [MASK]"
    )
  masked = _masked_query(run, text, answer)
  unaided = None if baseline is None else _fill_alone(baseline, text, answer)
  found = read_masks(
    run,
    masked.query(words, config.query_length),
    masked.mask_positions(config.max_masks),
    num_masks=masked.num_masks,
  )
  log_prior = log_softmax(found.scores)
  best = best_fillings(log_prior, found.log_probs, config.num_fillings)
  targets = best.token_ids[0]
  if masked.target_ids is not None:
    targets = np.array(masked.target_ids)
  by_token = _log_likelihoods(found.log_probs, targets[None])[0]
  totals = by_token.sum(axis=-1)
  log_likelihood, shares, rewards = marginalize(found.scores, totals)
  sentence = masked.filled_ids
  candidates = []
  for k, row in enumerate(found.rows.tolist()):
    prior = float(np.exp(log_prior[k]))
    alone = _most_likely(found.log_probs[k], 1)
    sure = _log_likelihoods(found.log_probs[k : k + 1], alone).sum()
    candidates.append(
      Candidate(
        block=run.block(row, float(found.scores[k]), prior),
        probability=prior,
        log_likelihood=float(totals[k]),
        token_log_likelihoods=by_token[k].tolist(),
        share=float(shares[k]),
        utility=float(totals[k] - totals[0]),
        reward=float(rewards[k]),
        best=Span(
          masked.filling_text(words, alone[0].tolist()), float(np.exp(sure))
        ),
        contains_text=row != NULL_ROW
        and contains_text(
          run.body(row).token_ids, sentence, words.mask_id, config.max_masks
        ),
      )
    )
  filled = masked.filling_text(words, targets.tolist())
  return Explanation(
    text=text,
    kind="masked sentence",
    read=words.decode(list(masked.read_ids)),
    answer=filled if answer is None else answer,
    answer_is_given=answer is not None,
    wordpieces=[words.pieces[i] for i in targets.tolist()],
    log_likelihood=log_likelihood,
    log_likelihood_null=float(totals[0]),
    utility=log_likelihood - float(totals[0]),
    candidates=candidates,
    fillings=_fillings(masked, words, best, has_null=True),
    unaided=unaided,
    notes=_notes(masked, words) + _verbatim_notes(candidates),
    checkpoint=run.step,
    generation=run.generation.step,
  )


def _masked_query(run: Run, text: str, answer: str | None) -> MaskedQuery:
  return masked_query(
    text,
    answer,
    run.vocabulary,
    query_length=run.config.query_length,
    max_masks=run.config.max_masks,
  )


def _notes(masked: MaskedQuery, words: WordpieceVocabulary) -> list[str]:
  notes = []
  if masked.is_cut:
    notes.append(
      f"the sentence has {len(masked.token_ids)} wordpieces, of which the "
      f"model reads {masked.num_read}, around the masks"
    )
  if words.unk_id in (masked.target_ids or ()):
    notes.append(
      "the answer has words that the vocabulary lacks; the model reads them as "
      "[UNK]"
    )
  return notes


def _verbatim_notes(candidates: Sequence[Candidate]) -> list[str]:
  """Names the candidates whose retrieval is trivial."""
  names = [one.block.id for one in candidates if one.contains_text]
  if not names:
    return []
  return [
    f"the sentence occurs word for word in {', '.join(names)}: trivial "
    "retrieval, which training leaves out"
  ]


def _scores(
  retriever: Retriever,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
) -> Float[Array, "b k"]:
  """Returns f(x,z), both embedded with the current parameters."""
  vectors = retriever.apply({"params": params}, query, candidates)
  return relevance(*vectors, score_scale=retriever.score_scale)


def _mask_logits(
  reader: Reader,
  params: Params,
  query: Int[Array, "b q"],
  positions: Int[Array, "b m"],
  candidates: Int[Array, "b k l"] | None = None,
) -> Float[Array, "b k m v"]:
  """Returns the logits of the vocabulary at each mask, by candidate.

  Without candidates, they are those of `[CLS] x [SEP]` alone, as of one.
  """
  token_ids = query
  if candidates is not None:
    token_ids = reader.join(query, candidates).token_ids
  inputs = sequences.padded(token_ids)
  return reader.apply({"params": params}, inputs, positions, method="masked_lm")


# --- Fillings ---------------------------------------------------------------


class Fillings(NamedTuple):
  """Fillings of m masks, the most likely first.

  Attributes:
    token_ids: Wordpieces.
    log_probabilities: log Σ_z p(z|x) Π_j p(y_j|z,x).
    by_candidate: log Π_j p(y_j|z,x), for each candidate.
  """

  token_ids: Int[np.ndarray, "n m"]
  log_probabilities: Float[np.ndarray, " n"]
  by_candidate: Float[np.ndarray, "n k"]


def best_fillings(
  log_prior: Float[np.ndarray, " k"],
  log_probs: Float[np.ndarray, "k m v"],
  num: int,
) -> Fillings:
  """Returns the `num` best fillings under Σ_z p(z|x) Π_j p(y_j|z,x).

  Those compared are the 64 best of each candidate, and the 64 that have the
  most likely wordpieces mask by mask. With a single mask the result is exact.
  """
  mixture = logsumexp(log_prior[:, None, None] + log_probs, axis=0)
  proposed = [_most_likely(one, _NUM_PROPOSED) for one in log_probs]
  proposed.append(_most_likely(mixture, _NUM_PROPOSED))
  token_ids = np.unique(np.concatenate(proposed), axis=0)
  by_candidate = _log_likelihoods(log_probs, token_ids).sum(axis=-1)
  totals = logsumexp(log_prior + by_candidate, axis=1)
  order = np.argsort(-totals, kind="stable")[:num]
  return Fillings(token_ids[order], totals[order], by_candidate[order])


def _most_likely(
  log_probs: Float[np.ndarray, "m v"], num: int
) -> Int[np.ndarray, "n m"]:
  """Returns the `num` most likely fillings of masks that are independent.

  The best of the first j masks are among the best of the first j − 1, each
  with one of the best wordpieces of mask j; so the result is exact.
  """
  num = min(num, log_probs.shape[1])
  token_ids = np.zeros((1, 0), np.int64)
  totals = np.zeros(1)
  for row in log_probs:
    best = np.argpartition(-row, num - 1)[:num]
    sums = totals[:, None] + row[best][None, :]
    order = np.argsort(-sums, axis=None, kind="stable")[:num]
    before, added = np.unravel_index(order, sums.shape)
    token_ids = np.column_stack([token_ids[before], best[added]])
    totals = sums[before, added]
  return token_ids


def _log_likelihoods(
  log_probs: Float[np.ndarray, "k m v"], token_ids: Int[np.ndarray, "n m"]
) -> Float[np.ndarray, "n k m"]:
  """Returns log p(y_j|z,x) of fillings, for each candidate and mask."""
  masks = np.arange(log_probs.shape[1])
  return np.moveaxis(log_probs[:, masks, token_ids], 0, 1)


def _fillings(
  masked: MaskedQuery,
  words: WordpieceVocabulary,
  best: Fillings,
  *,
  has_null: bool,
) -> list[Filling]:
  """Returns fillings as text; the first candidate may be the null block."""
  return [
    Filling(
      masked.filling_text(words, token_ids.tolist()),
      float(np.exp(total)),
      float(np.exp(by_candidate[0])) if has_null else None,
    )
    for token_ids, total, by_candidate in zip(*best, strict=True)
  ]


# --- A masked language model alone, to compare with --------------------------


def load_baseline(
  run: Run, *, model_dir: epath.PathLike, reader: Reader
) -> Run:
  """Loads the reader of another run, which fills in sentences without a text.

  Its vocabulary is `vocab.txt` in its directory, which an import writes, or
  else that of the run.

  Args:
    run: Run that is explained, whose lengths and devices it takes.
    model_dir: MODEL_DIR of a run of reading or of an import, or a checkpoint.
    reader: Its reader.

  Raises:
    CheckpointError: There is no such checkpoint, it has no reader, or it was
      trained over another vocabulary.
  """
  require_readable(model_dir)
  store, step = locate(model_dir)
  with contextlib.closing(store):
    own = store.directory.parent / "vocab.txt"
    words = WordpieceVocabulary(own) if own.exists() else run.vocabulary
    try:
      store.require_vocabulary(step, words.sha256)
    except CheckpointError as error:
      raise CheckpointError(
        f"{error}; or put the vocabulary that it was trained with into {own}"
      ) from error
    reader = reader.for_vocabulary(
      vocab_size=words.vocab_size, separator_id=words.sep_id
    )
    query = jax.ShapeDtypeStruct((1, run.config.query_length), jnp.int32)
    block = jax.ShapeDtypeStruct((1, 1, run.config.query_length), jnp.int32)
    variables = jax.eval_shape(
      reader.init, jax.random.key(0), query, block, query
    )
    abstract = meta.unbox(variables["params"])
    like = {"reader": sharding.abstract_replicated(abstract, run.mesh)}
    params = store.restore(step, items=("reader",), like=like)
  return dataclasses.replace(
    run,
    model_dir=store.directory.parent,
    step=step,
    models=run.models._replace(reader=reader),
    params=params,
    vocabulary=words,
  )


def _fill_alone(run: Run, text: str, answer: str | None) -> Unaided:
  """Fills in a sentence by BERT alone, which reads `[CLS] x [SEP]`."""
  config, words = run.config, run.vocabulary
  masked = _masked_query(run, text, answer)
  batch = {
    "query": masked.query(words, config.query_length)[None],
    "positions": masked.mask_positions(config.max_masks)[None],
  }
  log_probs = _log_probs(run, batch)[:, : masked.num_masks]
  log_likelihood = None
  if masked.target_ids is not None:
    by_token = _log_likelihoods(log_probs, np.array([masked.target_ids]))
    log_likelihood = float(by_token.sum())
  best = best_fillings(np.zeros(1), log_probs, config.num_fillings)
  return Unaided(
    model_dir=str(run.model_dir),
    checkpoint=run.step,
    wordpieces=[words.pieces[i] for i in masked.target_ids or ()],
    log_likelihood=log_likelihood,
    fillings=_fillings(masked, words, best, has_null=False),
  )


# --- Which head a run has trained -------------------------------------------


def require_masked_lm_head(run: Run) -> None:
  """Checks that a run can fill in [MASK]s.

  Raises:
    ExplanationError: Its steps have trained the span head alone.
  """
  if trained_heads(run.model_dir, run.step) == {SPAN}:
    raise ExplanationError(
      f"checkpoint {run.step} of {run.model_dir} is of open QA: it keeps the "
      "masked-LM head that the run began with, but its steps have trained the "
      "encoder for the span head alone, so the two no longer fit; give the run "
      "of pre-training as MODEL_DIR, or ask a question without [MASK]"
    )


def _require_span_head(run: Run, text: str) -> None:
  if trained_heads(run.model_dir, run.step) == {MASKED_LM}:
    raise ExplanationError(
      f"{text!r} has no [MASK], and checkpoint {run.step} of {run.model_dir} "
      "has only a masked-LM reader: its steps have not trained the span head "
      "that answers questions; write [MASK] for what is to be filled in, or "
      "give a run of open QA as MODEL_DIR"
    )


@functools.lru_cache(maxsize=16)
def trained_heads(model_dir: epath.Path, step: int) -> set[str]:
  """Returns the heads, `MASKED_LM` or `SPAN`, that the run's steps trained.

  A checkpoint always has the parameters of both heads. A run of open QA gives
  its masked-LM head no gradient while the encoder below changes, and
  pre-training likewise its span head, so neither may be asked. Adam's second
  moment of a head without a gradient is exactly zero. There are none of an
  imported checkpoint, which has no optimizer, nor of checkpoint 0.
  """
  suffixes = {
    head: f"nu/reader/{head}/norm/scale" for head in (MASKED_LM, SPAN)
  }
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    if "optimizer" not in store.items(step):
      return set()
    moments = store.restore_arrays(
      step, "optimizer", lambda path: path.endswith(tuple(suffixes.values()))
    )
  return {
    head
    for head, suffix in suffixes.items()
    for path, moment in moments.items()
    if path.endswith(suffix) and np.any(moment)
  }
