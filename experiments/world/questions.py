"""Questions about facts, and masked statements of facts."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.world.facts import Entities, Fact, Split
from realm_jax.text.vocabulary import MASK


@dataclasses.dataclass(frozen=True)
class Question:
  """A question about one fact.

  Attributes:
    id: Identifier, unique in its world.
    text: Text of the question.
    subject: Name of the entity that the question is about.
    fact: Index of the fact that answers it.
    answer: Its only correct answer.
  """

  id: str
  text: str
  subject: str
  fact: int
  answer: str


def make_questions(
  generator: np.random.Generator,
  facts: list[Fact],
  entities: Mapping[Split, Entities],
  *,
  counts: dict[Split, int],
) -> dict[Split, list[Question]]:
  """Makes the questions of each split, about the split's entities.

  Each split has at most `counts[split]` questions, in random order.
  """
  split_of = {
    name: split
    for split, names in entities.items()
    for name in itertools.chain(*names.values())
  }
  possible: dict[Split, list[Any]] = {split: [] for split in counts}
  for index, fact in enumerate(facts):
    split = split_of[fact.subject]
    sides = [(fact.subject, fact.value)]
    if fact.relation.is_symmetric:
      sides.append((fact.value, fact.subject))
    for subject, answer in sides:
      templates = generator.permutation(fact.relation.questions).tolist()
      # A held-out fact has one question, so the score counts facts.
      for template in templates if split == "train" else templates[:1]:
        text = template.format(s=subject)
        possible[split].append((text, subject, index, answer))
  questions = {}
  for split, choices in possible.items():
    order = generator.permutation(len(choices))[: counts[split]]
    questions[split] = [
      Question(f"{split}-{number:05d}", *choices[choice])
      for number, choice in enumerate(order)
    ]
  return questions


def make_statements(
  generator: np.random.Generator,
  facts: Sequence[Fact],
  questions: Sequence[Question],
  stated: Mapping[int, Collection[int]],
  translate: Callable[[str], str] = str,
) -> list[Question]:
  """Makes a masked statement of each fact that the questions ask for.

  Because pre-training never sees questions, retrieval before fine-tuning is
  measured with sentences like those it has seen, but in wordings that the
  corpus does not have. A statement uses a phrasing in which no document states
  its fact.

  Args:
    stated: Phrasings in which documents state each fact.
    translate: Function that translates a template.
  """
  statements: dict[int, Question] = {}
  for question in questions:
    fact = facts[question.fact]
    phrasings = fact.relation.phrasings
    others = sorted(set(range(len(phrasings))) - set(stated[question.fact]))
    template = translate(phrasings[generator.choice(others)].unseen)
    # A symmetric fact may have questions in both directions, but one statement.
    statements.setdefault(
      question.fact,
      dataclasses.replace(
        question,
        text=template.format(s=fact.subject, o=MASK),
        subject=fact.subject,
        answer=fact.value,
      ),
    )
  return list(statements.values())
