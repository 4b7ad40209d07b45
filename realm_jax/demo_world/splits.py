"""Splits of the entities that questions are about.

Facts connect entities of one split only. So no training question has a
held-out entity even as its answer. The names beside a held-out answer in its
block are as new as the answer; a reader could otherwise memorize which names
are answers.
"""

from typing import Literal

import numpy as np

from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import relations

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def split_entities(
  generator: np.random.Generator,
  entities: list[facts_lib.Entity],
  *,
  held_out: dict[Split, float],
) -> dict[Split, list[facts_lib.Entity]]:
  """Draws the entities of each split, with the same share of every kind.

  A name and the one similar to it ("Tavora", "New Tavora") stay together.

  There is at least one entity of every kind for each split. `held_out` has the
  shares of all splits but that for training, which has the rest.
  """
  of_split: dict[Split, list[facts_lib.Entity]] = {s: [] for s in SPLITS}
  for kind in relations.ENTITY_KINDS:
    families: dict[str, list[facts_lib.Entity]] = {}
    of_kind = [entity for entity in entities if entity.kind == kind]
    for entity in of_kind:
      families.setdefault(entity.name.split()[-1], []).append(entity)
    wanted = {
      split: max(1, round(share * len(of_kind)))
      for split, share in held_out.items()
    }
    for family in generator.permutation(list(families)):
      members = families[str(family)]
      split: Split = next(
        (s for s, number in wanted.items() if number >= len(members)), "train"
      )
      if split in wanted:
        wanted[split] -= len(members)
      of_split[split] += members
  return of_split
