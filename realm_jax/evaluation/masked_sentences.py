"""Encodes sentences with [MASK], and finds their fillings.

[MASK] is found in the raw text, because the tokenizer would split it into three
words. As in training, the query is `[CLS] x [SEP]`.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Int32
from scipy.special import log_softmax, logsumexp

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.evaluation.run import QUESTION, SENTENCE, TrainedRun
from realm_jax.models.components import (
  Retriever,
  embed_blocks,
  embed_queries,
)
from realm_jax.models.packing import padded_inputs
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import relevance
from realm_jax.settings import Asked
from realm_jax.text.vocabulary import MASK, BertVocabulary

_MASK_IN_ANY_CASE = re.compile(re.escape(MASK), re.IGNORECASE)
# One place to fill in: [MASK]s with only white space between them.
_MASKED_PLACE = re.compile(rf"{re.escape(MASK)}(?:\s*{re.escape(MASK)})*")
_MIN_WORDS = 3
# Number of partial fillings in the beam.
_BEAM = 64

NULL_BLOCK_ALONE = (
  "the null block is the only candidate, and the explanation compares blocks "
  "with it; raise NUM_CANDIDATES to 2 or more"
)


class ExplanationError(RealmError):
  """The run cannot explain a text, or an answer does not fit the text."""


class MaskedQuery(NamedTuple):
  """A masked sentence in wordpieces.

  Attributes:
    token_ids: Wordpieces of the whole sentence, without special tokens, and
      including the answer, if known.
    sizes: Number of [MASK]s in each place to fill in.
    target_ids: Wordpieces of the answer; None without one.
    num_read: Number of wordpieces that are read, around the masks.
    query: `[CLS] x [SEP]`, padded with 0.
    positions: Positions of the [MASK]s in the query, padded with 0.
  """

  token_ids: list[int]
  sizes: list[int]
  target_ids: list[int] | None
  num_read: int
  query: Int32[np.ndarray, " q"]
  positions: Int32[np.ndarray, " m"]

  def filling_text(
    self, words: BertVocabulary, token_ids: Sequence[int]
  ) -> str:
    """Returns a filling as text, with " | " between separate places."""
    rest = iter(token_ids)
    parts = (list(itertools.islice(rest, size)) for size in self.sizes)
    return " | ".join(map(words.decode, parts))


def kind_of(text: str) -> Asked:
  """Returns whether a text is a sentence to fill in, or a question.

  Raises:
    ExplanationError: The text has another spelling of [MASK].
  """
  match = _MASK_IN_ANY_CASE.search(text)
  if match and MASK not in text:
    raise ExplanationError(
      f"{text!r} has {match[0]!r}; write {MASK}, in capitals, for what is to "
      "be filled in"
    )
  return SENTENCE if match else QUESTION


def masked_query(
  run: TrainedRun, text: str, answer: str | None = None
) -> MaskedQuery:
  """Encodes a sentence with [MASK]s.

  With an answer, the place to fill in gets one [MASK] for each wordpiece of the
  answer. A sentence that is too long is truncated on both sides, but never
  between its masks.

  Raises:
    ExplanationError: There are too many masks, or they are too far apart; or
      the answer has no words or too many, or there are several places for it.
    RealmError: The vocabulary can spell no word of the sentence.
  """
  words, max_masks = run.vocabulary, run.config.max_masks
  first, *others = _MASKED_PLACE.split(text)
  words.require_known(text.replace(MASK, " "))
  sizes = [found.count(MASK) for found in _MASKED_PLACE.findall(text)]
  target_ids, source = None, repr(text)
  if answer is not None:
    if len(sizes) > 1:
      raise ExplanationError(
        f"{text!r} has {len(sizes)} separate places with {MASK}, and the "
        f"answer {answer!r} fills one; put the other words in their places"
      )
    # Byte pairs of "Rome" differ between "(Rome)" and "in Rome".
    follows = first[-1:].strip() != ""
    target_ids = words.encode(answer, follows=follows)
    source = f"the answer {answer!r}"
    sizes = [len(target_ids)]
    if not target_ids:
      raise ExplanationError(f"{source} has no words")
  if sum(sizes) > max_masks:
    raise ExplanationError(
      f"{source} has {sum(sizes)} wordpieces to fill in; at most {max_masks} "
      f"are scored, as in training: leave more of the words around {MASK}"
    )
  masked = [*words.encode(first)]
  for size, part in zip(sizes, others, strict=True):
    masked += [*[words.mask_id] * size, *words.encode(part, follows=True)]
  inside = np.flatnonzero(np.equal(masked, words.mask_id))
  token_ids = list(masked)
  if target_ids is not None:
    token_ids[inside[0] : inside[-1] + 1] = target_ids
  query_length = run.config.query_length
  room = min(query_length - 2, len(masked))
  spare = room - int(inside[-1] + 1 - inside[0])
  if spare < 0:
    raise ExplanationError(
      f"the {MASK}s of {text!r} are {room - spare} wordpieces apart, and the "
      f"model reads {room}; shorten the sentence between them"
    )
  start = min(max(int(inside[0]) - spare // 2, 0), len(masked) - room)
  query = np.zeros(query_length, np.int32)
  read_ids = masked[start : start + room]
  query[: room + 2] = [words.cls_id, *read_ids, words.sep_id]
  positions = np.zeros(max_masks, np.int32)
  positions[: len(inside)] = inside - start + 1
  return MaskedQuery(token_ids, sizes, target_ids, room, query, positions)


def contains_text(
  body_token_ids: Int[np.ndarray, " b"],
  token_ids: Sequence[int],
  mask_id: int,
  max_masks: int,
) -> bool:
  """Returns whether a block contains a text verbatim.

  A place with [MASK] matches 1 to `max_masks` words. A phrase of one or two
  words never counts, as it may be in many blocks.
  """
  length = len(body_token_ids)
  num_words = sum(one != mask_id for one in token_ids)
  if not _MIN_WORDS <= num_words <= length:
    return False
  # Whether the part of the text that has been read may end before each word of
  # the body. All positions are tracked at once, so that no word is read again.
  is_end = np.ones(length + 1, bool)
  for token_id, run in itertools.groupby(token_ids):
    if token_id == mask_id:
      ends = np.convolve(is_end[:-1], np.ones(max_masks))[:length]
      is_end = np.append(False, ends > 0)
      continue
    for _ in run:
      is_end = np.append(False, is_end[:-1] & (body_token_ids == token_id))
  return bool(is_end.any())


class Reading(NamedTuple):
  """Predictions for a masked sentence, given each of k candidates.

  Attributes:
    rows: Rows of the candidates, the null block first, then by score.
    scores: f(x,z), with the checkpoint's own towers.
    log_probs: log p(·|z,x) at each of m masks.
  """

  rows: Int[np.ndarray, " k"]
  scores: Float[np.ndarray, " k"]
  log_probs: Float[np.ndarray, "k m v"]

  @property
  def log_prior(self) -> Float[np.ndarray, " k"]:
    """log p(z|x)."""
    return log_softmax(self.scores)

  def marginalize(
    self, log_likelihoods: Float[np.ndarray, " k"]
  ) -> tuple[float, Float[np.ndarray, " k"]]:
    """Sums p(z|x) p(y|z,x) over the candidates, from log p(y|z,x).

    Returns:
      log p(y|x), and the candidates' shares of p(y|x), with sum 1.
    """
    joint = self.log_prior + log_likelihoods
    total = float(logsumexp(joint))
    return total, np.exp(joint - total)


def read_masks(
  run: TrainedRun,
  query: Int32[np.ndarray, " q"],
  positions: Int32[np.ndarray, " m"],
  *,
  rows: Int[np.ndarray, " k"] | None = None,
) -> Reading:
  """Reads a sentence with the null block and with each retrieved block.

  Args:
    run: Run of pre-training.
    query, positions: Fields of a `MaskedQuery`.
    rows: Candidates, the null block first; None searches for them.

  Raises:
    CheckpointError: The run was trained only for questions.
    ExplanationError: Only the null block would be a candidate.
  """
  run.require_kind(SENTENCE)
  if rows is None:
    number = run.config.num_candidates - 1
    if not number:
      raise ExplanationError(NULL_BLOCK_ALONE)
    # An imported cross-encoder was trained on questions.
    retriever = run if run.asked else run.restricted(None, rerank=False)
    retrieved = retriever.search(query[None], number, current=False).rows[0]
    rows = np.array([NULL_ROW, *retrieved.tolist()])
  candidates = run.gather(rows)
  inputs = {"query": query[None], "candidates": candidates[None]}
  retriever, params = run.components.retriever, run.params
  scores = run.compute(_scores, retriever, params["retriever"], **inputs)[0]
  reader: Any = run.require_reader()
  if not hasattr(reader, "masked_lm"):
    raise CheckpointError(
      f"the reader of {run!r}, a {type(reader).__name__}, fills in no masks; "
      "ask it a question"
    )
  inputs["positions"] = positions[None]
  logits = run.compute(_mask_logits, reader, params["reader"], **inputs)[0]
  logits = logits[:, : np.count_nonzero(positions)]
  log_probs = log_softmax(logits.astype(np.float64), axis=-1)
  scores = scores.astype(np.float64)
  order = np.array([0, *(1 + np.argsort(-scores[1:], kind="stable"))])
  return Reading(rows[order], scores[order], log_probs[order])


def _scores(
  retriever: Retriever,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
) -> Float[Array, "b k"]:
  """Returns f(x,z), with vectors from the current parameters."""
  queries = embed_queries(retriever, params, query)
  blocks = embed_blocks(retriever, params, candidates)
  return relevance(queries, blocks, score_scale=retriever.score_scale)


def _mask_logits(
  reader: BertReader,
  params: Params,
  query: Int[Array, "b q"],
  positions: Int[Array, "b m"],
  candidates: Int[Array, "b k l"],
) -> Float[Array, "b k m v"]:
  """Returns the logits of the vocabulary at each mask, by candidate."""
  inputs = padded_inputs(reader.join(query, candidates))
  return reader.apply({"params": params}, inputs, positions, method="masked_lm")


def best_fillings(
  reading: Reading, num: int
) -> tuple[Int[np.ndarray, "n m"], Float[np.ndarray, "n k"]]:
  """Finds the `num` best fillings under Σ_z p(z|x) Π_j p(y_j|z,x).

  A beam search over the masks keeps the 64 best partial fillings. With a single
  mask the result is exact. A filling with a probability above 1/64 is always
  found, since fewer than 64 partial fillings can be more likely.

  Returns:
    The wordpieces of the fillings, the most likely one first, and
    log Π_j p(y_j|z,x) for each candidate.
  """
  token_ids = np.zeros((1, 0), np.int64)
  # log p(z|x) p(y_1 … y_j|z,x) of each partial filling.
  joint = reading.log_prior[None]
  for at_mask in np.moveaxis(reading.log_probs, 1, 0):
    odds = np.exp(joint - joint.max()) @ np.exp(at_mask)
    size = min(_BEAM, odds.size)
    best = np.argpartition(-odds, size - 1, axis=None)[:size]
    before, added = np.unravel_index(best, odds.shape)
    token_ids = np.column_stack([token_ids[before], added])
    joint = joint[before] + at_mask[:, added].T
  order = np.argsort(-logsumexp(joint, axis=1), kind="stable")[:num]
  return token_ids[order], joint[order] - reading.log_prior
