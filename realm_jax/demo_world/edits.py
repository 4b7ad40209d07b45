"""Changing facts of a world, to show that answers follow the corpus."""

import collections
import dataclasses

import numpy as np
from etils import epath

from realm_jax.demo_world import relations
from realm_jax.demo_world import world as world_lib


@dataclasses.dataclass(frozen=True)
class Edit:
  """One changed fact and the test question whose answer it changes.

  Attributes:
    question_id, question: of the test questions.
    relation, subject: what was changed, and of whom.
    old_answer, new_answer: what the world states before and after.
  """

  question_id: str
  question: str
  relation: str
  subject: str
  old_answer: str
  new_answer: str


def edit_facts(
  world: world_lib.World, *, count: int, seed: int
) -> tuple[world_lib.World, list[Edit]]:
  """Changes facts that test questions ask for, wherever they are stated.

  Two facts of one relation exchange their values, so that the edited world is
  as regular as the one before: every value is still used as often, and an
  article is still about its entity (where a fact stood in its old value's
  article, the fact that has that value now takes its place).

  Args:
    world: the world to change; it is left as it is.
    count: how many facts to change; even.
    seed: of the choice among the test questions.

  Returns:
    The edited world, whose questions are the same but for the answers that
    changed, and the edits in the order of its test questions.

  Raises:
    ValueError: `count` is odd, or the test questions ask for too few facts.
  """
  if count % 2:
    raise ValueError(
      f"count={count} is odd; facts are changed in pairs, so ask for an even "
      "number"
    )
  pairs = _choose_pairs(world, count // 2, np.random.default_rng(seed))
  facts = list(world.facts)
  partner = {}
  for first, second in pairs:
    partner[first], partner[second] = second, first
    facts[first] = dataclasses.replace(
      world.facts[first], value=world.facts[second].value
    )
    facts[second] = dataclasses.replace(
      world.facts[second], value=world.facts[first].value
    )

  edits, questions = [], dict(world.questions)
  for split, group in world.questions.items():
    questions[split] = tuple(
      dataclasses.replace(question, answer=facts[question.fact].value)
      if question.fact in partner
      else question
      for question in group
    )
  for old, new in zip(world.questions["test"], questions["test"], strict=True):
    if old.answer != new.answer:
      relation = world.facts[old.fact].relation
      edits.append(
        Edit(old.id, old.text, relation, old.subject, old.answer, new.answer)
      )
  edited = dataclasses.replace(
    world,
    facts=tuple(facts),
    documents=tuple(
      _follow_values(document, world.facts, partner)
      for document in world.documents
    ),
    questions=questions,
  )
  return edited, edits


def _choose_pairs(world, num_pairs, generator):
  """Disjoint pairs of asked facts of one relation, spread over relations."""
  asked = collections.defaultdict(list)
  for question in world.questions["test"]:
    relation = relations.BY_NAME[world.facts[question.fact].relation]
    # An exchange would leave two other people with a changed spouse as well.
    if not relation.is_symmetric:
      asked[relation.name].append(question.fact)
  pairs = []
  for indices in asked.values():
    order = [int(index) for index in generator.permutation(indices)]
    pairs.append(list(zip(order[0::2], order[1::2], strict=False)))
  # One pair of each relation before a second one of any.
  rounds = [
    group[turn]
    for turn in range(max(map(len, pairs), default=0))
    for group in pairs
    if turn < len(group)
  ]
  if len(rounds) < num_pairs:
    raise ValueError(
      f"count={2 * num_pairs} facts to change, but the test questions allow "
      f"only {2 * len(rounds)}; lower it or ask more test questions"
    )
  return rounds[:num_pairs]


def _follow_values(document, facts, partner):
  """Keeps the article of a value about that value."""
  sentences = tuple(
    dataclasses.replace(sentence, fact=partner[sentence.fact])
    if sentence.fact in partner
    and document.entity == facts[sentence.fact].value
    else sentence
    for sentence in document.sentences
  )
  return dataclasses.replace(document, sentences=sentences)


def write_edited(
  directory: epath.PathLike,
  *,
  world: world_lib.World,
  edits: list[Edit],
) -> None:
  """Writes an edited world and `questions-edited.jsonl`.

  Each line of that file is a test question whose answer changed, as
  `write_world` writes it, with `old_answer` beside it.
  """
  world_lib.write_world(directory, world=world)
  old_answers = {edit.question_id: edit.old_answer for edit in edits}
  world_lib.write_lines(
    epath.Path(directory) / "questions-edited.jsonl",
    (
      world_lib.question_record(world, question)
      | {"old_answer": [old_answers[question.id]]}
      for question in world.questions["test"]
      if question.id in old_answers
    ),
  )
