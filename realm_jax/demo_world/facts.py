"""Entities and the facts that connect them.

Each relation is a near one-to-one matching of its subjects and values. So a
question about a subject has one answer, a sentence whose subject is masked can
be answered from its value, and no value is common enough to be guessed.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from realm_jax.demo_world import names, relations

# One pool for everything counted or dated, so that each number is a word that
# occurs often and none gives away what it measures.
NUMBERS = tuple(range(1600, 1900))
_MONTHS = (
  "January February March April May June July August September October "
  "November December"
).split()


@dataclasses.dataclass(frozen=True)
class Entity:
  """A person, place or thing; `name` is unique in its world."""

  name: str
  kind: relations.EntityKind


@dataclasses.dataclass(frozen=True)
class Fact:
  """`value` is what `relation` gives `subject`: a name, number or date."""

  relation: str
  subject: str
  value: str

  @property
  def entities(self) -> tuple[str, ...]:
    """The names of the entities it is about."""
    if relations.BY_NAME[self.relation].has_entity_value:
      return (self.subject, self.value)
    return (self.subject,)

  def word(self, template: str) -> str:
    """The fact in the words of one of its relation's templates."""
    return template.format(s=self.subject, o=self.value)


def make_entities(
  generator: np.random.Generator, counts: dict[relations.EntityKind, int]
) -> list[Entity]:
  """Makes `counts[kind]` entities of each kind."""
  return [
    Entity(name, kind)
    for kind, group in names.make_names(generator, counts).items()
    for name in group
  ]


def make_facts(
  generator: np.random.Generator, groups: Sequence[Sequence[Entity]]
) -> list[Fact]:
  """Gives every entity a value of every relation it is a subject of.

  Of a symmetric relation each pair is one fact; with an odd number of
  entities one has none.

  Args:
    generator: draws the values.
    groups: entities that facts connect only with others of their group, each
      with every kind; numbers and dates, too, are of one group only.
  """
  total = sum(len(group) for group in groups)
  ends = np.cumsum([len(group) for group in groups])[:-1]
  shares = (ends * len(NUMBERS) / total).astype(int)
  numbers = np.split(generator.permutation(NUMBERS), shares)
  facts = []
  for group, own_numbers in zip(groups, numbers, strict=True):
    facts += _make_group_facts(generator, group, own_numbers)
  return facts


def _make_group_facts(generator, group, numbers) -> list[Fact]:
  by_kind: dict[str, list[str]] = {kind: [] for kind in relations.ENTITY_KINDS}
  for entity in group:
    by_kind[entity.kind].append(entity.name)
  facts = []
  for relation in relations.RELATIONS:
    subjects: Sequence[str] = by_kind[relation.subject]
    if relation.is_symmetric:
      order = [str(name) for name in generator.permutation(subjects)]
      subjects, values = order[0 : len(order) - 1 : 2], order[1::2]
    elif relation.has_entity_value:
      values = _spread(generator, by_kind[relation.value], len(subjects))
    else:
      values = _spread(generator, numbers, len(subjects))
      if relation.value == "date":
        values = [_date(generator, year) for year in values]
    facts += [
      Fact(relation.name, str(subject), str(value))
      for subject, value in zip(subjects, values, strict=True)
    ]
  return facts


def _spread(generator, values, count: int) -> list:
  """`count` values in random order, each used as often as any other."""
  rounds = [
    generator.permutation(values) for _ in range(-(-count // len(values)))
  ]
  return list(np.concatenate(rounds)[:count])


def _date(generator, year) -> str:
  month = generator.choice(_MONTHS)
  return f"{generator.integers(1, 29)} {month} {year}"
