"""From the labels of words to entities.

Labels are `O` for words outside of entities, and `B-PER` and the like for
others, in any of the schemes IOB1, IOB2, BIOES and BILOU. As in transformers'
pipelines, a word continues the entity of the word before if it has the same
kind and does not begin one; so no sequence of labels is invalid.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

OUTSIDE = "O"
# Whether a word with the prefix begins an entity wherever it stands.
_BEGINS = {"B": True, "S": True, "U": True, "I": False, "E": False, "L": False}
_KINDS = {
  "PER": "person",
  "PERSON": "person",
  "ORG": "organization",
  "ORGANIZATION": "organization",
  "LOC": "location",
  "LOCATION": "location",
  "MISC": "miscellaneous",
}


class Label(NamedTuple):
  """What one label says of a word: the kind of its entity, if it is in one."""

  kind: str | None
  begins: bool


class LabelError(ValueError):
  """Labels that are not those of a tagger of entities."""


def parse_labels(names: Sequence[str]) -> tuple[Label, ...]:
  """Reads the labels of a model.

  The four kinds of CoNLL-2003 become person, organization, location and
  miscellaneous; any other is taken in lower case. A label without a prefix is
  read as if it had `I-`.

  Raises:
    LabelError: There is no `O`, or nothing besides it.
  """
  if OUTSIDE not in names or len(names) < 2:
    raise LabelError(
      f"the labels are {', '.join(names)}; want {OUTSIDE} and those of "
      "entities, such as B-PER and I-PER"
    )
  return tuple(map(_parse, names))


def _parse(name: str) -> Label:
  if name == OUTSIDE:
    return Label(None, begins=False)
  prefix, hyphen, kind = name.partition("-")
  if not hyphen or prefix not in _BEGINS:
    prefix, kind = "I", name
  return Label(_KINDS.get(kind.upper(), kind.lower()), _BEGINS[prefix])


def entities(
  label_ids: Int[np.ndarray, " w"],
  sentences: Int[np.ndarray, " w"],
  labels: Sequence[Label],
) -> Iterator[tuple[int, int, str]]:
  """Yields the first word, the last word and the kind of each entity.

  Args:
    label_ids: Label of each word.
    sentences: Number of each word's sentence, which no entity leaves.
    labels: Labels by id.
  """
  is_inside = np.array([label.kind is not None for label in labels])
  first = last = -1
  kind: str | None = None
  for word in np.flatnonzero(is_inside[label_ids]).tolist():
    label = labels[label_ids[word]]
    continues = (
      word == last + 1
      and label.kind == kind
      and not label.begins
      and sentences[word] == sentences[last]
    )
    if not continues:
      if kind is not None:
        yield first, last, kind
      first, kind = word, label.kind
    last = word
  if kind is not None:
    yield first, last, kind
