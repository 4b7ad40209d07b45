"""Relations of the demo world, and the sentences that express them.

Every relation has three phrasings, which share no content word, and questions,
whose content words are in no sentence. So a question and the text that answers
it only share a name. The same holds for sentences that state a fact in
different phrasings. Because many other sentences with that name state other
facts, a retriever must learn which phrasings have the same meaning.

In `relations.txt`, `A -> B` is a relation with subjects of kind A and values
of kind B, and `A <-> A` is a symmetric one. `{s}` is the subject and `{o}` the
value. `-` starts a phrasing, `+` is another wording with the same content
words, and `*` is a wording that the corpus never has; `?` starts a question. No
article or noun is next to a name, because it could reveal part of a masked
name.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast, get_args

EntityKind = Literal["person", "city", "company"]
ValueKind = EntityKind | Literal["number"]

ENTITY_KINDS: tuple[EntityKind, ...] = get_args(EntityKind)


@dataclasses.dataclass(frozen=True)
class Phrasing:
  """Templates of sentences with the same content words.

  The corpus has at least two `wordings`; the `unseen` one is in no block.
  """

  wordings: tuple[str, ...]
  unseen: str


@dataclasses.dataclass(frozen=True)
class Relation:
  """A relation from entities of one kind to values.

  Attributes:
    name: Name in files and reports.
    subject: Kind of the entity that replaces `{s}`.
    value: Kind of the value that replaces `{o}`.
    phrasings: Three ways to express it, without common content words.
    questions: Wordings of questions, at least three.
    is_symmetric: Whether it holds, and is asked about, in both directions.
  """

  name: str
  subject: EntityKind
  value: ValueKind
  phrasings: tuple[Phrasing, ...]
  questions: tuple[str, ...]
  is_symmetric: bool = False

  @property
  def has_entity_value(self) -> bool:
    """Whether the value is an entity, rather than a number."""
    return self.value in ENTITY_KINDS

  @property
  def templates(self) -> tuple[str, ...]:
    """All sentences and questions that express the relation."""
    sentences = [(*p.wordings, p.unseen) for p in self.phrasings]
    return (*itertools.chain(*sentences), *self.questions)


def parse_relations(table: str) -> tuple[Relation, ...]:
  """Reads a table of relations, such as `relations.txt`."""
  return tuple(_parse(table))


def _parse(table: str) -> Iterator[Relation]:
  for entry in re.split(r"\n(?! )", table.strip()):
    header, *lines = map(str.strip, entry.splitlines())
    name, _, kinds = header.partition(": ")
    subject, arrow, value = kinds.split()
    phrasings, wordings, questions = [], [], []
    for mark, text in ((line[0], line[2:]) for line in lines):
      if mark == "*":
        phrasings.append(Phrasing(tuple(wordings), unseen=text))
        wordings = []
      else:
        (questions if mark == "?" else wordings).append(text)
    yield Relation(
      name=name,
      subject=cast(EntityKind, subject),
      value=cast(ValueKind, value),
      phrasings=tuple(phrasings),
      questions=tuple(questions),
      is_symmetric=arrow == "<->",
    )


RELATIONS = parse_relations(Path(__file__).with_suffix(".txt").read_text())
