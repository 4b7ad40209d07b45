"""Questions about the facts, in every wording."""

import dataclasses

import numpy as np

from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import relations
from realm_jax.demo_world.splits import Split


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
  facts: list[facts_lib.Fact],
  split_of: dict[str, Split],
  *,
  counts: dict[Split, int],
) -> dict[Split, list[Question]]:
  """Asks about facts in every wording, each split about its own entities.

  Args:
    generator: draws the questions.
    facts: what there is to ask about.
    split_of: the split of each entity's name.
    counts: questions wanted of each split; fewer where there are not so many.

  Returns:
    The questions of each split, in random order.
  """
  possible: dict[Split, list[tuple[str, str, int, str]]] = {
    split: [] for split in counts
  }
  for index, fact in enumerate(facts):
    relation = relations.BY_NAME[fact.relation]
    split = split_of[fact.subject]
    sides = [(fact.subject, fact.value)]
    if relation.is_symmetric:
      sides.append((fact.value, fact.subject))
    for subject, answer in sides:
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
