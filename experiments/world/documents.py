"""Documents of the demo world: short notes that each mix several entities.

A note has three sentences: two facts about one entity and one about another,
in random order. Its title is a newspaper's, and reveals nothing. Each fact is
stated in three notes, in two phrasings, one of them with two wordings. So about
thirty notes name a person, and three of them answer a question about the
person.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from experiments.world.facts import Fact
from experiments.world.relations import Relation

_NUM_STATEMENTS = 3
# Phrasings of each fact in documents. The others are for masked statements.
_NUM_PHRASINGS = 2
_NEWSPAPERS = (
  "Morning Post",
  "Evening Gazette",
  "Daily Courier",
  "Weekly Mirror",
  "Sunday Herald",
  "Village Echo",
)
# Attempts to find a sentence about another entity that fits into a note.
_MAX_DRAWS = 100


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A fact, by its index in the world, and the template that words it.

  The template is one of the wordings of a phrasing, which is given by its
  number among the phrasings of the fact's relation.
  """

  fact: int
  phrasing: int
  template: str


@dataclasses.dataclass(frozen=True)
class Document:
  """A note. Its id is unique in its world, and its title names no entity."""

  id: str
  title: str
  sentences: tuple[Sentence, ...]

  def text(self, facts: Sequence[Fact]) -> str:
    """Returns the document's text, given the facts of its world."""
    return " ".join(facts[s.fact].word(s.template) for s in self.sentences)


def write_notes(
  generator: np.random.Generator, facts: Sequence[Fact]
) -> list[Document]:
  """Writes notes that state all facts, in random order."""
  pairs, strangers = _pair(generator, facts)
  notes = [
    [*pair, *_take_stranger(generator, facts, pair, strangers)]
    for pair in pairs
  ]
  # The remaining sentences also form notes of three, about three entities.
  notes += [strangers[i : i + 3] for i in range(0, len(strangers), 3)]
  generator.shuffle(notes)
  return [
    Document(
      id=f"note-{number:05d}",
      sentences=tuple(note[i] for i in generator.permutation(len(note))),
      title=str(generator.choice(_NEWSPAPERS)),
    )
    for number, note in enumerate(notes)
  ]


def _state(
  generator: np.random.Generator, fact: int, relation: Relation
) -> list[Sentence]:
  """States a fact three times, in different wordings."""
  phrasings = generator.permutation(len(relation.phrasings))[:_NUM_PHRASINGS]
  orders = []
  for i in phrasings.tolist():
    templates = generator.permutation(relation.phrasings[i].wordings).tolist()
    orders.append([Sentence(fact, i, template) for template in templates])
  # Each phrasing once, before the second wording of any.
  by_turns = itertools.chain(*zip(*orders, strict=True))
  return [*by_turns][:_NUM_STATEMENTS]


def _pair(
  generator: np.random.Generator, facts: Sequence[Fact]
) -> tuple[list[list[Sentence]], list[Sentence]]:
  """Pairs two thirds of the statements about each entity; returns the rest."""
  about: dict[str, list[Sentence]] = collections.defaultdict(list)
  for index, fact in enumerate(facts):
    for statement in _state(generator, index, fact.relation):
      # A symmetric fact is about either of its entities.
      entity = fact.subject
      if fact.relation.is_symmetric and generator.random() < 0.5:
        entity = fact.value
      about[entity].append(statement)
  pairs, rest = [], []
  for statements in about.values():
    shuffled = [statements[i] for i in generator.permutation(len(statements))]
    num_paired = len(shuffled) // 3
    for _ in range(num_paired):
      first = shuffled.pop()
      other = next(
        (s for s in reversed(shuffled) if s.fact != first.fact), None
      )
      if other is None:
        rest.append(first)
        break
      shuffled.remove(other)
      pairs.append([first, other])
    rest += shuffled
  return pairs, [rest[i] for i in generator.permutation(len(rest))]


def _take_stranger(
  generator: np.random.Generator,
  facts: Sequence[Fact],
  pair: Sequence[Sentence],
  strangers: list[Sentence],
) -> list[Sentence]:
  """Takes a sentence that names no entity of a pair, if one is found."""
  names = {name for s in pair for name in facts[s.fact].entities}
  for _ in range(min(_MAX_DRAWS, len(strangers))):
    i = int(generator.integers(len(strangers)))
    if names.isdisjoint(facts[strangers[i].fact].entities):
      strangers[i], strangers[-1] = strangers[-1], strangers[i]
      return [strangers.pop()]
  return []
