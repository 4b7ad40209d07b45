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
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.core import meta
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
)
from realm_jax.evaluation.masked_sentences import (
  best_fillings,
  contains_text,
  is_masked,
  marginalize,
  masked_query,
  read_alone,
  read_masks,
)
from realm_jax.evaluation.run import Run
from realm_jax.models.reader import Reader
from realm_jax.partitioning import sharding
from realm_jax.storage.access import require_readable
from realm_jax.text.normalization import normalize_answer
from realm_jax.text.wordpieces import MASK, WordpieceVocabulary

MASKED_LM, SPAN = "masked_lm_head", "span_head"


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
    explained = _explain_sentence(run, text, answer)
    if baseline is None:
      return explained
    unaided = _explain_sentence(baseline, text, answer, is_baseline=True)
    return dataclasses.replace(explained, unaided=unaided)
  if baseline is not None:
    raise ExplanationError(f"{text!r} has no [MASK], which a baseline fills in")
  if trained_heads(run.model_dir, run.step) == {MASKED_LM}:
    raise ExplanationError(
      f"{text!r} has no [MASK], and checkpoint {run.step} of {run.model_dir} "
      "has only a masked-LM reader: its steps have not trained the span head "
      "that answers questions; write [MASK] for what is to be filled in, or "
      "give a run of open QA as MODEL_DIR"
    )
  return _explain_question(run, text, answer)


# --- Questions --------------------------------------------------------------


def _explain_question(run: Run, text: str, answer: str | None) -> Explanation:
  """Explains an answer, the best one if none is given."""
  words, room = run.vocabulary, run.config.query_length - 2
  token_ids = words.encode(text)
  if not token_ids:
    raise ExplanationError(f"the question {text!r} has no words")
  if answer is not None and not normalize_answer(answer, run.language):
    raise ExplanationError(f"the answer {answer!r} has no words")
  (answered,) = answers.ask(run, [text], answer=answer)
  explained = answered.given
  if answer is None and answered.answers:
    explained = answered.answers[0]
  candidates = []
  for k, place in enumerate(answered.read):
    block, posterior = answered.blocks[place], answered.posterior[k]
    best, share, given_block = answered.alone[k], None, 0.0
    if explained is not None:
      share = explained.shares[k]
      given_block = explained.probability * share / posterior if share else 0.0
    if best is not None:
      best = Filling(
        best.text, best.probability, start=best.start, limit=best.limit
      )
    body = run.content(block.row).body_token_ids
    candidates.append(
      Candidate(
        block=block,
        probability=posterior,
        log_likelihood=float(np.log(given_block)) if given_block else None,
        share=share,
        best=best,
        contains_text=contains_text(body, token_ids, words.mask_id, 1),
      )
    )
  notes = [*_verbatim_notes(candidates), *words.notes(text)]
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
  return Explanation(
    text=text,
    kind="question",
    model_dir=str(run.model_dir),
    checkpoint=run.step,
    generation=run.generation.step,
    read=words.decode(token_ids[:room]),
    answer=shown,
    answer_is_given=answer is not None,
    wordpieces=[words.pieces[i] for i in words.encode(shown)],
    log_likelihood=None
    if explained is None
    else float(np.log(explained.probability)),
    candidates=candidates,
    fillings=[
      Filling(one.text, one.probability)
      for one in answered.answers[: run.config.num_fillings]
    ],
    notes=notes,
  )


# --- Sentences --------------------------------------------------------------


def _explain_sentence(
  run: Run, text: str, answer: str | None, *, is_baseline: bool = False
) -> Explanation:
  """Explains a filling of a sentence with [MASK]."""
  config, words = run.config, run.vocabulary
  masked = masked_query(
    text,
    answer,
    words,
    query_length=config.query_length,
    max_masks=config.max_masks,
  )
  read = read_alone if is_baseline else read_masks
  found = read(run, masked.query, masked.positions)
  log_prior = log_softmax(found.scores)
  best_ids, by_candidate = best_fillings(
    log_prior, found.log_probs, config.num_fillings
  )
  fillings = [
    Filling(
      masked.filling_text(words, token_ids),
      float(np.exp(logsumexp(log_prior + own))),
      None if is_baseline else float(np.exp(own[0])),
    )
    for token_ids, own in zip(best_ids.tolist(), by_candidate, strict=True)
  ]
  target_ids = masked.target_ids or best_ids[0].tolist()
  by_token = found.log_probs[:, np.arange(len(target_ids)), target_ids]
  totals = by_token.sum(axis=-1)
  log_likelihood, shares, rewards = marginalize(found.scores, totals)
  candidates = []
  for k, row in enumerate(found.rows.tolist()):
    prior = float(np.exp(log_prior[k]))
    alone = found.log_probs[k]
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
      f"the sentence has {len(masked.token_ids)} wordpieces, of which the "
      f"model reads {masked.num_read}, around the masks"
    )
  if words.unk_id in (masked.target_ids or ()):
    notes.append(
      "the answer has words that the vocabulary lacks; the model reads them as "
      "[UNK]"
    )
  return Explanation(
    text=text,
    kind="masked sentence",
    model_dir=str(run.model_dir),
    checkpoint=run.step,
    generation=None if is_baseline else run.generation.step,
    read=words.decode(masked.query[1 : masked.num_read + 1].tolist()),
    answer=answer or fillings[0].text,
    answer_is_given=answer is not None,
    wordpieces=[words.pieces[i] for i in target_ids],
    log_likelihood=log_likelihood,
    candidates=candidates,
    fillings=fillings,
    notes=notes + _verbatim_notes(candidates),
    log_likelihood_null=float(totals[0]),
    utility=log_likelihood - float(totals[0]),
  )


def _verbatim_notes(candidates: Sequence[Candidate]) -> list[str]:
  """Names the candidates whose retrieval is trivial."""
  names = [one.block.id for one in candidates if one.contains_text]
  if not names:
    return []
  return [
    f"the sentence occurs word for word in {', '.join(names)}: trivial "
    "retrieval, which training leaves out"
  ]


# --- Which models there are --------------------------------------------------


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


@functools.lru_cache(maxsize=16)
def trained_heads(model_dir: epath.Path, step: int) -> set[str]:
  """Returns the heads, `MASKED_LM` or `SPAN`, that the run's steps trained.

  A checkpoint always has the parameters of both heads. A run of open QA gives
  its masked-LM head no gradient while the encoder below changes, and
  pre-training likewise its span head, so neither may be asked. Adam's second
  moment of a head without a gradient is exactly zero. There are none of an
  imported checkpoint, which has no optimizer, nor of checkpoint 0.
  """
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    if "optimizer" not in store.items(step):
      return set()
    suffixes = {f"nu/reader/{h}/norm/scale": h for h in (MASKED_LM, SPAN)}
    moments = store.restore_arrays(
      step, "optimizer", lambda path: path.endswith(tuple(suffixes))
    )
  return {
    head
    for suffix, head in suffixes.items()
    for path, moment in moments.items()
    if path.endswith(suffix) and np.any(moment)
  }
