"""The splits of entities, and the facts that connect them.

Each relation maps subjects to values almost one to one. So a question about a
subject has one answer, a masked subject can be inferred from its value, and no
value is common enough to be guessed.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from experiments.world import relations
from realm_jax.errors import RealmError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
# All counts and years come from one pool, so each number is a frequent word,
# and does not reveal what it measures.
NUMBERS = tuple(range(1600, 1900))
# With hundreds of names, one in two or three orders is such a circle.
_MAX_DRAWS = 1000

# Names of the entities of each kind. A name is unique in its world.
Entities = dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Fact:
  """A statement that `relation` of `subject` is `value`, a name or a number."""

  relation: relations.Relation
  subject: str
  value: str

  @property
  def entities(self) -> tuple[str, ...]:
    """Names of the entities that the fact is about."""
    named = self.relation.has_entity_value
    return (self.subject, self.value) if named else (self.subject,)

  def word(self, template: str) -> str:
    """Returns the fact, worded by one of its relation's templates."""
    return template.format(s=self.subject, o=self.value)


def make_facts(
  generator: np.random.Generator,
  groups: Sequence[Entities],
  among: Sequence[relations.Relation] = relations.RELATIONS,
) -> list[Fact]:
  """Makes the facts of all entities, for some relations.

  Each entity gets a value for every relation of its kind. Facts connect
  entities of the same group, and each number occurs in only one group. In a
  symmetric relation, each pair is one fact; if the number of entities is odd,
  one of them has none. Each group has every kind.
  """
  ends = np.cumsum([sum(map(len, group.values())) for group in groups])
  shares = (ends[:-1] * len(NUMBERS) / ends[-1]).astype(int)
  of_groups = np.split(generator.permutation(NUMBERS), shares)
  facts = []
  for (group, numbers), relation in itertools.product(
    zip(groups, of_groups, strict=True), among
  ):
    subjects = group[relation.subject]
    values: Sequence[object]
    if relation.is_symmetric:
      order = _circle(generator, subjects)
      subjects, values = order[0 : len(order) - 1 : 2], order[1::2]
    elif relation.value == relation.subject:
      # In a circle, so nobody is their own value.
      subjects = _circle(generator, subjects)
      values = subjects[1:] + subjects[:1]
    else:
      choices = group.get(relation.value, numbers)
      # In random order, with equal frequency.
      num_rounds = -(-len(subjects) // len(choices))
      rounds = [generator.permutation(choices) for _ in range(num_rounds)]
      values = np.concatenate(rounds)[: len(subjects)].tolist()
    facts += [
      Fact(relation, str(subject), str(value))
      for subject, value in zip(subjects, values, strict=True)
    ]
  return facts


def _circle(generator: np.random.Generator, names: Sequence[str]) -> list[str]:
  """Orders names in a circle without similar names as neighbors.

  Otherwise, a question about "Young Tavia" could mention its answer, "Tavia".

  Raises:
    ValueError: No circle was found, because there are too few names.
  """
  for _ in range(_MAX_DRAWS):
    order = [str(name) for name in generator.permutation(names)]
    following = order[1:] + order[:1]
    pairs = zip(order, following, strict=True)
    if all(a.split()[-1] != b.split()[-1] for a, b in pairs):
      return order
  raise RealmError(
    f"{len(names)} entities of a kind in one split are too few to be related "
    "to each other; make the world larger"
  )


def split_entities(
  generator: np.random.Generator,
  entities: Entities,
  *,
  held_out: dict[Split, float],
) -> dict[Split, Entities]:
  """Draws the entities of each split, with the same share of every kind.

  Facts only connect entities of the same split. So held-out entities are not
  even answers to training questions. The names near a held-out answer in its
  block are equally new; otherwise a reader could memorize which names are
  answers.

  A name and its similar name ("Tavora", "New Tavora") are in the same split.

  Each split has at least one entity of every kind. `held_out` has the shares of
  all splits except training, which gets the rest.
  """
  of_split: dict[Split, Entities] = {
    split: {kind: [] for kind in entities} for split in SPLITS
  }
  for kind, names in entities.items():
    families: dict[str, list[str]] = {}
    for name in names:
      families.setdefault(name.split()[-1], []).append(name)
    missing = {s: max(1, round(p * len(names))) for s, p in held_out.items()}
    for family in generator.permutation(list(families)):
      members = families[str(family)]
      fitting = [s for s, number in missing.items() if number >= len(members)]
      split: Split = fitting[0] if fitting else "train"
      if split in missing:
        missing[split] -= len(members)
      of_split[split][kind] += members
  return of_split
