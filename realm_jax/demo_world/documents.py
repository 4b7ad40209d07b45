"""Articles and digests: which document tells which fact, and how.

An article is about one entity, but many facts about that entity are told only
in the article of another one. Two digests, "Gazette 7" and "Chronicle 7",
restate the facts about one entity in another register, and only their
sentences name it. So most facts are told in an article and in the digests of
both their entities, and a sentence of any of them can be completed from the
others.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import relations

MIN_SENTENCES, MAX_SENTENCES = 4, 8
_DIGESTS = ("Gazette", "Chronicle")


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A fact, by its index in the world, and the template that words it."""

  fact: int
  template: str


@dataclasses.dataclass(frozen=True)
class Document:
  """An article or a digest.

  Attributes:
    id: Identifier, unique in its world.
    title: Name of the entity, or number of the digest.
    entity: Name of the entity; None for a digest.
    sentences: Sentences of the text, in order.
  """

  id: str
  title: str
  entity: str | None
  sentences: tuple[Sentence, ...]

  def text(self, facts: Sequence[facts_lib.Fact]) -> str:
    """Returns the document's text, given the facts of its world."""
    return " ".join(facts[s.fact].word(s.template) for s in self.sentences)


class Writer:
  """Writes articles and digests of facts, with order and wording at random."""

  def __init__(
    self,
    generator: np.random.Generator,
    entities: Sequence[facts_lib.Entity],
    facts: Sequence[facts_lib.Fact],
  ):
    self._generator = generator
    self._entities = entities
    self._facts = facts
    # By the name of an entity: the facts about it, and the other entities in
    # them.
    self._about: dict[str, list[int]] = collections.defaultdict(list)
    self._neighbours: dict[str, list[str]] = collections.defaultdict(list)
    for index, fact in enumerate(facts):
      for name in fact.entities:
        self._about[name].append(index)
        self._neighbours[name] += [n for n in fact.entities if n != name]

  def articles(self, *, told_elsewhere: float) -> list[Document]:
    """Writes an article for each entity, in their order.

    The share `told_elsewhere` of the facts is told in another entity's article
    instead of their subject's.
    """
    told = self._assign_facts(told_elsewhere)
    for entity in self._entities:
      self._lengthen(entity.name, told[entity.name])
    documents = []
    for number, entity in enumerate(self._entities):
      name = entity.name
      # Facts about the entity itself come first.
      order = sorted(
        told[name],
        key=lambda i: (not self._is_about(i, name), self._generator.random()),
      )
      sentences = tuple(
        self._word(index, self._relation(index).articles) for index in order
      )
      documents.append(Document(f"article-{number:05d}", name, name, sentences))
    return documents

  def digests(self, *, num_facts: int) -> list[Document]:
    """Restates the facts about each entity, under titles that name nobody.

    A digest has at most `num_facts` sentences.
    """
    documents = []
    for number, entity in enumerate(self._entities):
      order = self._generator.permutation(self._about[entity.name]).tolist()
      # If one digest does not hold all facts, the other starts with the rest.
      for title, chosen in zip(_DIGESTS, (order, order[::-1]), strict=True):
        sentences = tuple(
          self._word(index, self._relation(index).digests)
          for index in chosen[:num_facts]
        )
        document_id = f"{title.lower()}-{number:05d}"
        documents.append(
          Document(document_id, f"{title} {number}", None, sentences)
        )
    return documents

  def _relation(self, index: int) -> relations.Relation:
    return relations.BY_NAME[self._facts[index].relation]

  def _is_about(self, index: int, name: str) -> bool:
    return name in self._facts[index].entities

  def _word(self, index: int, templates: Sequence[str]) -> Sentence:
    return Sentence(index, str(self._generator.choice(templates)))

  def _assign_facts(self, told_elsewhere: float) -> dict[str, list[int]]:
    """Chooses the facts told in each entity's article: indices by name."""
    told: dict[str, list[int]] = {entity.name: [] for entity in self._entities}
    for index, fact in enumerate(self._facts):
      elsewhere = list(fact.entities[1:]) or self._neighbours[fact.subject]
      articles = [fact.subject]
      if elsewhere and self._generator.random() < told_elsewhere:
        articles = elsewhere
      # If all are full, which is rare, the shortest takes one sentence more.
      free = [a for a in articles if len(told[a]) < MAX_SENTENCES] or [
        min((fact.subject, *elsewhere), key=lambda name: len(told[name]))
      ]
      told[free[self._generator.integers(len(free))]].append(index)
    return told

  def _lengthen(self, name: str, told: list[int]) -> None:
    """Adds facts that other articles tell to an article that is too short."""
    facts, generator = self._facts, self._generator
    own = [index for index in self._about[name] if index not in told]
    # Facts of which the entity is the value come first: no question asks for
    # them by its name.
    own.sort(key=lambda i: (facts[i].subject == name, generator.random()))
    num_missing = max(0, 2 - sum(self._is_about(i, name) for i in told))
    told += own[:num_missing]
    nearby = [
      index
      for neighbour in self._neighbours[name]
      for index in self._about[neighbour]
      if index not in told and facts[index].subject != name
    ]
    rest = generator.permutation(list(dict.fromkeys(nearby))).tolist()
    rest += own[num_missing:]
    told += rest[: max(0, MIN_SENTENCES - len(told))]
