"""Relations of the demo world, and the sentences that express them.

Every relation has three phrasings, which share no content word, and questions,
whose content words no sentence has. So a question shares only a name with the
text that answers it, and so does a sentence with another that states the same
fact in another phrasing. As many sentences share that name and state other
facts, a retriever has to learn which phrasings mean the same.

In `relations.txt`, `A -> B` is a relation with subjects of kind A and values
of kind B, and `A <-> A` a symmetric one. `{s}` is the subject and `{o}` the
value. `-` begins a phrasing, `+` is another wording with the same content
words, and `*` one that the corpus never has; `?` precedes questions. Names have
no article or noun beside them, so that no part of a masked name is given away.
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

  At least two `wordings` are in the corpus; the `unseen` one is in no block.
  """

  wordings: tuple[str, ...]
  unseen: str


@dataclasses.dataclass(frozen=True)
class Relation:
  """A relation that gives each entity of one kind a value.

  Attributes:
    name: Name in files and reports.
    subject: Kind of the entity that replaces `{s}`.
    value: Kind of the value that replaces `{o}`.
    phrasings: Three ways to express it, without a content word in common.
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
