"""Questions about the facts, split so that no test entity is trained on."""

import dataclasses
from typing import Literal

import numpy as np

from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import relations

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Question:
  """A question about one fact.

  Attributes:
    id: unique in its world.
    text: what is asked.
    subject: the entity it is about.
    fact: the index of the fact that answers it.
    answer: the one right answer.
  """

  id: str
  text: str
  subject: str
  fact: int
  answer: str


def make_questions(
  generator: np.random.Generator,
  entities: list[facts_lib.Entity],
  facts: list[facts_lib.Fact],
  *,
  counts: dict[Split, int],
  held_out: dict[Split, float],
) -> dict[Split, list[Question]]:
  """Asks about facts in every wording, each split about its own entities.

  Args:
    generator: draws the split of the entities, and the questions.
    entities, facts: what there is to ask about.
    counts: questions wanted of each split; fewer where there are not so many.
    held_out: the share of entities that only validation or only test
      questions mention. No training question mentions them, nor has them as
      its answer.

  Returns:
    The questions of each split, in random order.
  """
  # A name and the one that is like it ("Tavora", "New Tavora") stay together.
  families = list(dict.fromkeys(_family(e.name) for e in entities))
  families = [str(family) for family in generator.permutation(families)]
  num_test = max(1, round(held_out["test"] * len(families)))
  num_validation = max(1, round(held_out["validation"] * len(families)))
  split_of: dict[str, Split] = {}
  for number, family in enumerate(families):
    if number < num_test:
      split_of[family] = "test"
    elif number < num_test + num_validation:
      split_of[family] = "validation"
    else:
      split_of[family] = "train"

  possible: dict[Split, list[tuple[str, str, int, str]]] = {
    split: [] for split in SPLITS
  }
  for index, fact in enumerate(facts):
    relation = relations.BY_NAME[fact.relation]
    sides = [(fact.subject, fact.value)]
    if relation.is_symmetric:
      sides.append((fact.value, fact.subject))
    for subject, answer in sides:
      split = split_of[_family(subject)]
      if split == "train" and split_of.get(_family(answer), split) != split:
        continue
      templates = [str(t) for t in generator.permutation(relation.questions)]
      # A held-out fact is asked once, so that the score counts facts.
      for template in templates if split == "train" else templates[:1]:
        possible[split].append(
          (template.format(s=subject), subject, index, answer)
        )

  questions: dict[Split, list[Question]] = {}
  for split, choices in possible.items():
    order = generator.permutation(len(choices))[: counts[split]]
    questions[split] = [
      Question(f"{split}-{number:05d}", *choices[choice])
      for number, choice in enumerate(order)
    ]
  return questions


def _family(name: str) -> str:
  return name.split()[-1]
