"""Edits of a world's facts, to show that answers follow the corpus."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from experiments.world import relations
from experiments.world import world as world_lib
from experiments.world.facts import Split
from experiments.world.questions import Question
from realm_jax.storage.json_files import json_lines


def edit_facts(
  world: world_lib.World, *, count: int, seed: int
) -> world_lib.World:
  """Changes facts that test questions ask for, in every document.

  Two facts of one relation exchange their values, so that the edited world is
  as regular as the one before: every value is used as often.

  The world is not modified. In the one that is returned, only the answers of
  questions have changed. The seed chooses among the facts that test questions
  ask for, which may be fewer than `count`, an even number.
  """
  facts = list(world.facts)
  for first, second in _choose_pairs(world, count // 2, seed):
    for index, other in ((first, second), (second, first)):
      value = world.facts[other].value
      facts[index] = dataclasses.replace(facts[index], value=value)

  def answered(
    questions: Mapping[Split, Sequence[Question]],
  ) -> dict[Split, list[Question]]:
    return {
      split: [
        # A question about a symmetric fact may have its subject as the answer.
        one
        if facts[one.fact] == world.facts[one.fact]
        else dataclasses.replace(one, answer=facts[one.fact].value)
        for one in group
      ]
      for split, group in questions.items()
    }

  return dataclasses.replace(
    world,
    facts=facts,
    questions=answered(world.questions),
    statements=answered(world.statements),
  )


def _choose_pairs(
  world: world_lib.World, num_pairs: int, seed: int
) -> list[tuple[int, int]]:
  """Chooses disjoint pairs of facts that test questions ask for.

  The facts of a pair have the same relation and different values, and the pairs
  are spread over the relations.
  """
  asked: dict[str, list[int]] = collections.defaultdict(list)
  for question in world.questions["test"]:
    relation = relations.BY_NAME[world.facts[question.fact].relation]
    # Exchanging spouses would change those of two other people as well.
    if not relation.is_symmetric:
      asked[relation.name].append(question.fact)
  generator = np.random.default_rng(seed)
  orders = [generator.permutation(facts).tolist() for facts in asked.values()]
  # One pair of each relation before a second one of any.
  rounds = itertools.zip_longest(
    *(zip(order[0::2], order[1::2], strict=False) for order in orders)
  )
  pairs = [
    (first, second)
    for first, second in filter(None, itertools.chain(*rounds))
    if world.facts[first].value != world.facts[second].value
  ]
  return pairs[:num_pairs]


def write_edited(
  directory: epath.PathLike, *, before: world_lib.World, after: world_lib.World
) -> None:
  """Writes an edited world and `questions-edited.jsonl`.

  That file has the test questions whose answers changed, as `write_world`
  writes them, with the field `old_answer`.
  """
  world_lib.write_world(directory, after)
  with json_lines(epath.Path(directory) / "questions-edited.jsonl") as write:
    for old, new in zip(
      before.questions["test"], after.questions["test"], strict=True
    ):
      if old.answer != new.answer:
        record = world_lib.question_record(after, new)
        write(record | {"old_answer": [old.answer]})
