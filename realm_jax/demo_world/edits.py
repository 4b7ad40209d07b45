"""Edits of a world's facts, to show that answers follow the corpus."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from realm_jax.demo_world import relations
from realm_jax.demo_world import world as world_lib
from realm_jax.demo_world.documents import Document
from realm_jax.demo_world.facts import Fact


@dataclasses.dataclass(frozen=True)
class Edit:
  """One changed fact and the test question whose answer it changes.

  Attributes:
    question_id: Identifier of the test question.
    question: Text of the test question.
    relation: Relation of the changed fact.
    subject: Subject of the changed fact.
    old_answer: Answer before the edit.
    new_answer: Answer after the edit.
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
  """Changes facts that test questions ask for, in every document.

  Two facts of one relation exchange their values, so that the edited world is
  as regular as the one before: every value is used as often, and an article is
  still about its entity. (If a fact was told in its old value's article, the
  fact that has that value now replaces it.)

  Args:
    world: World to edit; it is not modified.
    count: Number of facts to change, an even number.
    seed: Seed of the choice among the test questions.

  Returns:
    The edited world, in which only the answers of questions have changed, and
    the edits in the order of its test questions.

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
  partner: dict[int, int] = {}
  for first, second in pairs:
    partner[first], partner[second] = second, first
    facts[first] = dataclasses.replace(
      world.facts[first], value=world.facts[second].value
    )
    facts[second] = dataclasses.replace(
      world.facts[second], value=world.facts[first].value
    )

  questions = dict(world.questions)
  for split, group in world.questions.items():
    questions[split] = tuple(
      dataclasses.replace(question, answer=facts[question.fact].value)
      if question.fact in partner
      else question
      for question in group
    )
  edits = [
    Edit(
      question_id=old.id,
      question=old.text,
      relation=world.facts[old.fact].relation,
      subject=old.subject,
      old_answer=old.answer,
      new_answer=new.answer,
    )
    for old, new in zip(world.questions["test"], questions["test"], strict=True)
    if old.answer != new.answer
  ]
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


def _choose_pairs(
  world: world_lib.World, num_pairs: int, generator: np.random.Generator
) -> list[tuple[int, int]]:
  """Chooses disjoint pairs of facts that test questions ask for.

  The facts of a pair have the same relation, and the pairs are spread over
  the relations.
  """
  asked: dict[str, list[int]] = collections.defaultdict(list)
  for question in world.questions["test"]:
    relation = relations.BY_NAME[world.facts[question.fact].relation]
    # Exchanging spouses would change those of two other people as well.
    if not relation.is_symmetric:
      asked[relation.name].append(question.fact)
  pairs: list[list[tuple[int, int]]] = []
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


def _follow_values(
  document: Document, facts: Sequence[Fact], partner: Mapping[int, int]
) -> Document:
  """Replaces facts so that an article of a value is still about that value."""
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

  That file has the test questions whose answers changed, as `write_world`
  writes them, with the field `old_answer`.
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
