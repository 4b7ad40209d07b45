"""A sentence with [MASK], as a user writes it, and the query that is read.

[MASK] is told apart in the raw text, since the tokenizer would take it for
three words. As in training, the query is `[CLS] x [SEP]`.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int32

from realm_jax.evaluation.explanation import ExplanationError
from realm_jax.text.wordpieces import MASK, WordpieceVocabulary

_MASK_IN_ANY_CASE = re.compile(re.escape(MASK), re.IGNORECASE)
# One place to fill in: [MASK]s with nothing but white space between them.
_MASKED_PLACE = re.compile(rf"{re.escape(MASK)}(?:\s*{re.escape(MASK)})*")
_MIN_WORDS = 3


@dataclasses.dataclass(frozen=True)
class MaskedQuery:
  """A masked sentence in wordpieces.

  Attributes:
    token_ids: Wordpieces of the whole sentence without specials, with [MASK]s.
    places: Places to fill in, each as the indices `[start, limit)` of its
      [MASK]s in `token_ids`.
    target_ids: Wordpieces behind the [MASK]s; None if no answer is given.
    first: Index of the first of `token_ids` that is read.
    num_read: Number of `token_ids` that are read; all, unless the sentence is
      too long.
  """

  token_ids: tuple[int, ...]
  places: tuple[tuple[int, int], ...]
  target_ids: tuple[int, ...] | None
  first: int
  num_read: int

  @property
  def num_masks(self) -> int:
    """Number of [MASK]s."""
    return sum(limit - start for start, limit in self.places)

  @property
  def is_cut(self) -> bool:
    """Whether the sentence was too long to be read whole."""
    return self.num_read < len(self.token_ids)

  @property
  def read_ids(self) -> tuple[int, ...]:
    """The wordpieces that are read."""
    return self.token_ids[self.first : self.first + self.num_read]

  @property
  def filled_ids(self) -> list[int]:
    """The wordpieces of the sentence with the answer, if it is given."""
    token_ids = list(self.token_ids)
    if self.target_ids is not None:
      start, limit = self.places[0]
      token_ids[start:limit] = self.target_ids
    return token_ids

  def query(
    self, words: WordpieceVocabulary, query_length: int
  ) -> Int32[np.ndarray, " q"]:
    """Returns `[CLS] x [SEP]`, padded with 0."""
    query = np.zeros(query_length, np.int32)
    query[: self.num_read + 2] = [words.cls_id, *self.read_ids, words.sep_id]
    return query

  def mask_positions(self, max_masks: int) -> Int32[np.ndarray, " m"]:
    """Returns the positions of the [MASK]s in the query, padded with 0."""
    inside = [i for place in self.places for i in range(*place)]
    positions = np.zeros(max_masks, np.int32)
    positions[: len(inside)] = np.array(inside) - self.first + 1
    return positions

  def filling_text(
    self, words: WordpieceVocabulary, token_ids: Sequence[int]
  ) -> str:
    """Returns a filling as text, with " | " between separate places."""
    parts, used = [], 0
    for start, limit in self.places:
      size = limit - start
      parts.append(words.decode(list(token_ids[used : used + size])))
      used += size
    return " | ".join(parts)


def is_masked(text: str) -> bool:
  """Returns whether a text has something to fill in.

  Raises:
    ExplanationError: It has [MASK] in another spelling.
  """
  found = _MASK_IN_ANY_CASE.search(text)
  if found and MASK not in text:
    raise ExplanationError(
      f"{text!r} has {found[0]!r}; write {MASK}, in capitals, for what is to "
      "be filled in"
    )
  return found is not None


def masked_query(
  text: str,
  answer: str | None,
  words: WordpieceVocabulary,
  *,
  query_length: int,
  max_masks: int,
) -> MaskedQuery:
  """Reads a sentence with [MASK]s.

  With an answer, the one place to fill in becomes as many [MASK]s as the
  answer has wordpieces. A sentence that is too long is cut on both sides, and
  never between its masks.

  Args:
    text: Sentence with [MASK]s.
    answer: Words behind its one place to fill in; None leaves them open.
    words: Vocabulary that reads both.
    query_length: Maximum tokens of a query, [CLS] and [SEP] included.
    max_masks: Number of masks that the run was trained to score together.

  Raises:
    ExplanationError: There are too many masks, or they are too far apart; or
      the answer has no words, too many, or several places to go.
  """
  matches = list(_MASKED_PLACE.finditer(text))
  sizes = [match[0].count(MASK) for match in matches]
  target_ids = None
  if answer is not None:
    target_ids = tuple(words.encode(answer))
    _require_answer_fits(text, answer, target_ids, len(matches), max_masks)
    sizes = [len(target_ids)]
  if sum(sizes) > max_masks:
    raise ExplanationError(
      f"{text!r} has {sum(sizes)} {MASK}s; at most {max_masks} are "
      "scored, as in training: leave some of the words in place"
    )
  token_ids: list[int] = []
  places, end = [], 0
  for match, size in zip(matches, sizes, strict=True):
    token_ids += words.encode(text[end : match.start()])
    places.append((len(token_ids), len(token_ids) + size))
    token_ids += [words.mask_id] * size
    end = match.end()
  token_ids += words.encode(text[end:])
  first, num_read = _window(
    len(token_ids), places[0][0], places[-1][1], query_length - 2, text
  )
  return MaskedQuery(
    tuple(token_ids), tuple(places), target_ids, first, num_read
  )


def _require_answer_fits(
  text: str,
  answer: str,
  target_ids: Sequence[int],
  num_places: int,
  max_masks: int,
) -> None:
  if num_places > 1:
    raise ExplanationError(
      f"{text!r} has {num_places} separate places with {MASK}, and the answer "
      f"{answer!r} fills one; put the other words in their places"
    )
  if not target_ids:
    raise ExplanationError(f"the answer {answer!r} has no words")
  if len(target_ids) > max_masks:
    raise ExplanationError(
      f"the answer {answer!r} has {len(target_ids)} wordpieces; at most "
      f"{max_masks} are scored, as in training: give a shorter answer, "
      f"and the rest of its words around {MASK}"
    )


def _window(
  num_tokens: int, first_mask: int, masks_limit: int, room: int, text: str
) -> tuple[int, int]:
  """Returns the start and the size of the part of a sentence that is read."""
  if num_tokens <= room:
    return 0, num_tokens
  spare = room - (masks_limit - first_mask)
  if spare < 0:
    raise ExplanationError(
      f"the {MASK}s of {text!r} are {masks_limit - first_mask} wordpieces "
      f"apart, and the model reads {room}; shorten the sentence between them"
    )
  start = first_mask - spare // 2
  return min(max(start, 0), num_tokens - room), room


def contains_text(
  body_token_ids: Int[np.ndarray, " b"],
  token_ids: Sequence[int],
  mask_id: int,
  max_masks: int,
) -> bool:
  """Returns whether a block contains a text word for word.

  Words behind a place with [MASK] may be any, at most `max_masks` of them. A
  phrase of one or two words says nothing about where a text is from.
  """
  if sum(one != mask_id for one in token_ids) < _MIN_WORDS:
    return False
  pattern = "".join("_" if one == mask_id else f"{one} " for one in token_ids)
  pattern = re.sub("_+", rf"(?:\\d+ ){{1,{max_masks}}}", pattern)
  body = "".join(f"{one} " for one in body_token_ids.tolist())
  return re.search(r"(?<!\d)" + pattern, body) is not None
