"""Articles and digests: which document states which fact, in which words.

An article is about one entity, but many facts about that entity stand only in
the article of another one. Two digests, "Gazette 7" and "Chronicle 7", restate
what concerns one entity in the other register, and only their sentences say
which. So most facts stand in an article and in the digests of both their
entities, and a sentence of any of them can be completed from the others.
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
  """A fact, by its index in the world, and the wording it is stated in."""

  fact: int
  template: str


@dataclasses.dataclass(frozen=True)
class Document:
  """An article or a digest.

  Attributes:
    id: unique in its world.
    title: the entity's name, or the digest's number.
    entity: whose article it is; None for a digest.
    sentences: what it states, in order.
  """

  id: str
  title: str
  entity: str | None
  sentences: tuple[Sentence, ...]

  def text(self, facts: Sequence[facts_lib.Fact]) -> str:
    """The document's text, given the facts of its world."""
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
    generator: draws places, order and wording.
    entities, facts: what there is to write about.
    told_elsewhere: the share of facts that are not told in their subject's
      article but in that of another entity.
    facts_per_digest: the most sentences of a digest.

  Returns:
    The articles in the order of `entities`, then the digests in that order,
    each pair together.
  """
  told = _assign(generator, entities, facts, told_elsewhere)
  documents = [
    _article(generator, number, entity, told[entity.name], facts)
    for number, entity in enumerate(entities)
  ]
  documents += _digests(generator, entities, facts, facts_per_digest)
  return documents


def _assign(generator, entities, facts, told_elsewhere):
  """Chooses the facts told in each entity's article: indices by name."""
  about = collections.defaultdict(list)
  neighbours = collections.defaultdict(list)
  for index, fact in enumerate(facts):
    for name in fact.entities:
      about[name].append(index)
      neighbours[name] += [other for other in fact.entities if other != name]

  told = {entity.name: [] for entity in entities}
  for index, fact in enumerate(facts):
    elsewhere = list(fact.entities[1:]) or neighbours[fact.subject]
    homes = [fact.subject]
    if elsewhere and generator.random() < told_elsewhere:
      homes = elsewhere
    room = [h for h in homes if len(told[h]) < MAX_SENTENCES]
    # Both ends and all neighbours full is rare; the emptiest then takes it.
    room = room or [
      min((fact.subject, *elsewhere), key=lambda name: len(told[name]))
    ]
    told[room[generator.integers(len(room))]].append(index)

  for entity in entities:
    _fill(generator, entity.name, told[entity.name], facts, about, neighbours)
  return told


def _fill(generator, name, told, facts, about, neighbours):
  """Tells facts a second time where an article would be too short."""
  own = [index for index in about[name] if index not in told]
  # As the value of another's fact it is not the one that is asked about.
  own.sort(key=lambda index: (facts[index].subject == name, generator.random()))
  num_own = sum(name in facts[index].entities for index in told)
  while own and (num_own < 2):
    told.append(own.pop(0))
    num_own += 1
  nearby = [i for n in neighbours[name] for i in about[n] if i not in told]
  nearby = [i for i in dict.fromkeys(nearby) if facts[i].subject != name]
  rest = [int(i) for i in generator.permutation(nearby)] + own
  told += rest[: max(0, MIN_SENTENCES - len(told))]


def _article(generator, number, entity, told, facts):
  # What is about the entity itself comes first.
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


def _digests(generator, entities, facts, facts_per_digest):
  """Restates what concerns each entity, under titles that name nobody."""
  about = collections.defaultdict(list)
  for index, fact in enumerate(facts):
    for name in fact.entities:
      about[name].append(index)
  documents = []
  for number, entity in enumerate(entities):
    order = generator.permutation(about[entity.name])
    # Where one does not hold all facts, the other begins with the rest.
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
