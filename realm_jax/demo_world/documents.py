"""Documents of the demo world: short notes that each mix several entities.

A note has three sentences, about three entities. Its title is that of a
newspaper, and tells nothing. Each fact is stated in two notes, in another
phrasing in each. So some twenty notes name an entity, and two of them answer a
question about it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import relations

_NUM_SENTENCES, _NUM_STATEMENTS = 3, 2
_NEWSPAPERS = (
  "Morning Post",
  "Evening Gazette",
  "Daily Courier",
  "Weekly Mirror",
  "Sunday Herald",
  "Village Echo",
)


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A fact, by its index in the world, and the template that words it.

  Attributes:
    fact: Index of the fact.
    phrasing: Number of the phrasing among those of its relation.
    template: One of that phrasing's wordings.
  """

  fact: int
  phrasing: int
  template: str


@dataclasses.dataclass(frozen=True)
class Document:
  """A note.

  Attributes:
    id: Identifier, unique in its world.
    title: Title of a newspaper, which names no entity.
    sentences: Sentences of the text, in order.
  """

  id: str
  title: str
  sentences: tuple[Sentence, ...]

  def text(self, facts: Sequence[facts_lib.Fact]) -> str:
    """Returns the document's text, given the facts of its world."""
    return " ".join(facts[s.fact].word(s.template) for s in self.sentences)


def write_notes(
  generator: np.random.Generator, facts: Sequence[facts_lib.Fact]
) -> list[Document]:
  """Writes the notes that state all facts, in random order.

  No two sentences of a note name the same entity, unless none is left that
  names others.
  """
  statements = [
    statement
    for index, fact in enumerate(facts)
    for statement in statements_of(
      generator, index, relations.BY_NAME[fact.relation]
    )
  ]
  left = [statements[i] for i in generator.permutation(len(statements))]
  documents = []
  while left:
    note: list[Sentence] = []
    names: set[str] = set()
    while left and len(note) < _NUM_SENTENCES:
      # The first that names other entities; nearly always one of the last.
      chosen = next(
        (
          i
          for i in reversed(range(len(left)))
          if names.isdisjoint(facts[left[i].fact].entities)
        ),
        len(left) - 1,
      )
      note.append(left.pop(chosen))
      names.update(facts[note[-1].fact].entities)
    title = str(generator.choice(_NEWSPAPERS))
    documents.append(
      Document(f"note-{len(documents):05d}", title, tuple(note))
    )
  return documents


def statements_of(
  generator: np.random.Generator, fact: int, relation: relations.Relation
) -> list[Sentence]:
  """States a fact twice, each time in another phrasing."""
  chosen = generator.permutation(len(relation.phrasings))[:_NUM_STATEMENTS]
  return [
    Sentence(
      fact, int(i), str(generator.choice(relation.phrasings[i].wordings))
    )
    for i in chosen
  ]
