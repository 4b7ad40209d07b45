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
from collections.abc import Mapping, Sequence

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


def make_documents(
  generator: np.random.Generator,
  entities: list[facts_lib.Entity],
  facts: list[facts_lib.Fact],
  *,
  told_elsewhere: float,
  facts_per_digest: int,
) -> list[Document]:
  """Writes an article for each entity, and two digests about it.

  Args:
    generator: Random generator of articles, order and wording.
    entities: Entities of the world.
    facts: Facts of the world.
    told_elsewhere: Share of facts that are told in another entity's article
      instead of their subject's.
    facts_per_digest: Maximum number of sentences of a digest.

  Returns:
    Articles in the order of `entities`, then each entity's two digests in the
    same order.
  """
  told = _assign_facts(generator, entities, facts, told_elsewhere)
  documents = [
    _article(generator, number, entity, told[entity.name], facts)
    for number, entity in enumerate(entities)
  ]
  documents += _digests(generator, entities, facts, facts_per_digest)
  return documents


def _facts_about(facts: Sequence[facts_lib.Fact]) -> dict[str, list[int]]:
  """Returns the indices of the facts about each entity, by its name."""
  about: dict[str, list[int]] = collections.defaultdict(list)
  for index, fact in enumerate(facts):
    for name in fact.entities:
      about[name].append(index)
  return about


def _assign_facts(
  generator: np.random.Generator,
  entities: Sequence[facts_lib.Entity],
  facts: Sequence[facts_lib.Fact],
  told_elsewhere: float,
) -> dict[str, list[int]]:
  """Chooses the facts told in each entity's article: indices by name."""
  neighbours: dict[str, list[str]] = collections.defaultdict(list)
  for fact in facts:
    for name in fact.entities:
      neighbours[name] += [other for other in fact.entities if other != name]

  told: dict[str, list[int]] = {entity.name: [] for entity in entities}
  for index, fact in enumerate(facts):
    elsewhere = list(fact.entities[1:]) or neighbours[fact.subject]
    articles = [fact.subject]
    if elsewhere and generator.random() < told_elsewhere:
      articles = elsewhere
    # If all are full, which is rare, the shortest takes one sentence more.
    free = [a for a in articles if len(told[a]) < MAX_SENTENCES] or [
      min((fact.subject, *elsewhere), key=lambda name: len(told[name]))
    ]
    told[free[generator.integers(len(free))]].append(index)

  about = _facts_about(facts)
  for entity in entities:
    _lengthen(
      generator, entity.name, told[entity.name], facts, about, neighbours
    )
  return told


def _lengthen(
  generator: np.random.Generator,
  name: str,
  told: list[int],
  facts: Sequence[facts_lib.Fact],
  about: Mapping[str, Sequence[int]],
  neighbours: Mapping[str, Sequence[str]],
) -> None:
  """Adds facts that other articles tell to an article that is too short."""
  own = [index for index in about[name] if index not in told]
  # Facts of which the entity is the value come first: no question asks for
  # them by its name.
  own.sort(key=lambda index: (facts[index].subject == name, generator.random()))
  num_own = sum(name in facts[index].entities for index in told)
  while own and (num_own < 2):
    told.append(own.pop(0))
    num_own += 1
  nearby = [i for n in neighbours[name] for i in about[n] if i not in told]
  nearby = [i for i in dict.fromkeys(nearby) if facts[i].subject != name]
  rest = [int(i) for i in generator.permutation(nearby)] + own
  told += rest[: max(0, MIN_SENTENCES - len(told))]


def _article(
  generator: np.random.Generator,
  number: int,
  entity: facts_lib.Entity,
  told: Sequence[int],
  facts: Sequence[facts_lib.Fact],
) -> Document:
  # Facts about the entity itself come first.
  told = sorted(
    told,
    key=lambda i: (entity.name not in facts[i].entities, generator.random()),
  )
  sentences = tuple(
    Sentence(
      index,
      str(generator.choice(relations.BY_NAME[facts[index].relation].articles)),
    )
    for index in told
  )
  return Document(f"article-{number:05d}", entity.name, entity.name, sentences)


def _digests(
  generator: np.random.Generator,
  entities: Sequence[facts_lib.Entity],
  facts: Sequence[facts_lib.Fact],
  facts_per_digest: int,
) -> list[Document]:
  """Restates the facts about each entity, under titles that name nobody."""
  about = _facts_about(facts)
  documents = []
  for number, entity in enumerate(entities):
    order = generator.permutation(about[entity.name])
    # If one digest does not hold all facts, the other starts with the rest.
    for title, chosen in zip(_DIGESTS, (order, order[::-1]), strict=True):
      sentences = tuple(
        Sentence(
          int(index),
          str(
            generator.choice(relations.BY_NAME[facts[index].relation].digests)
          ),
        )
        for index in chosen[:facts_per_digest]
      )
      documents.append(
        Document(
          f"{title.lower()}-{number:05d}", f"{title} {number}", None, sentences
        )
      )
  return documents
