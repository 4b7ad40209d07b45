"""Generates the demo world from a seed, edits it, and writes its files."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from etils import epath

from experiments.world import names
from experiments.world.documents import Document, write_notes
from experiments.world.facts import (
  Entities,
  Fact,
  Split,
  make_facts,
  split_entities,
)
from experiments.world.questions import (
  Question,
  make_questions,
  make_statements,
)
from realm_jax.settings import Fraction, NonNegativeInt, Range, require_valid
from realm_jax.storage.json_files import JsonValue, json_lines
from realm_jax.text.normalization import Normalization
from realm_jax.text.vocabulary import SENTINEL
from realm_jax.text.vocabulary_files import write_vocabulary
from realm_jax.text.vocabulary_training import train_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary

_VOCABULARY_SIZE = 8000
# Every split of the questions has an entity of each kind.
_NumEntities = Annotated[int, Range(least=3)]


@dataclasses.dataclass(frozen=True)
class WorldConfig:
  """The size of a world and the number of its questions.

  If a relation has more subjects than values, for example more people than
  birthplaces, values are reused, and masked subjects are ambiguous. So there
  should be more people and cities than other entities.

  Attributes:
    seed: Seed of all random choices.
    num_people, num_cities, num_companies: Number of entities of each kind.
    num_train_questions, num_validation_questions, num_test_questions: Maximum
      number of questions of each split.
    held_out_test, held_out_validation: Share of the entities of each kind that
      only questions of that split mention or have as their answer.
  """

  seed: NonNegativeInt = 0
  num_people: _NumEntities = 300
  num_cities: _NumEntities = 300
  num_companies: _NumEntities = 110
  num_train_questions: NonNegativeInt = 12000
  num_validation_questions: NonNegativeInt = 200
  num_test_questions: NonNegativeInt = 400
  held_out_test: Fraction = 0.2
  held_out_validation: Fraction = 0.08

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class World:
  """A fictional world, the facts in it, and questions about them."""

  entities: Entities
  facts: Sequence[Fact]
  documents: Sequence[Document]
  questions: Mapping[Split, Sequence[Question]]
  statements: Mapping[Split, Sequence[Question]]
  splits: Mapping[Split, Entities]

  @functools.cached_property
  def gold_ids(self) -> Mapping[int, Sequence[str]]:
    """Ids of the documents that state each fact."""
    ids: dict[int, list[str]] = collections.defaultdict(list)
    for document in self.documents:
      for fact in {sentence.fact for sentence in document.sentences}:
        ids[fact].append(document.id)
    return ids


_DEFAULTS = WorldConfig()


def generate(config: WorldConfig = _DEFAULTS) -> World:
  """Generates a world, deterministically from its configuration."""
  generator = np.random.default_rng(config.seed)
  entities = names.make_entities(
    generator,
    {
      "person": config.num_people,
      "city": config.num_cities,
      "company": config.num_companies,
    },
  )
  held_out: dict[Split, float] = {
    "test": config.held_out_test,
    "validation": config.held_out_validation,
  }
  split = split_entities(generator, entities, held_out=held_out)
  facts = make_facts(generator, list(split.values()))
  documents = write_notes(generator, facts)
  questions = make_questions(
    generator,
    facts,
    split,
    counts={
      "train": config.num_train_questions,
      "validation": config.num_validation_questions,
      "test": config.num_test_questions,
    },
  )
  stated: dict[int, set[int]] = collections.defaultdict(set)
  for document in documents:
    for sentence in document.sentences:
      stated[sentence.fact].add(sentence.phrasing)
  statements = {
    one: make_statements(generator, facts, questions[one], stated)
    for one in reversed(held_out)
  }
  return World(entities, facts, documents, questions, statements, split)


def write_world(directory: epath.PathLike, world: World) -> None:
  """Writes a world's documents and questions to a directory.

  The files are `articles.jsonl`, `questions-SPLIT.jsonl`, and, for held-out
  splits, `statements-SPLIT.jsonl`.
  """
  articles = epath.Path(directory) / "articles.jsonl"
  write_articles(articles, world, world.documents)
  write_questions(directory, world, "questions", world.questions)
  write_questions(directory, world, "statements", world.statements)


def write_articles(
  path: epath.PathLike,
  world: World,
  documents: Sequence[Document],
  **fields: str,
) -> None:
  """Writes documents as JSON Lines, each with additional fields."""
  with json_lines(path) as write:
    for one in documents:
      text = one.text(world.facts)
      write({"id": one.id, "title": one.title, "text": text, **fields})


def write_questions(
  directory: epath.PathLike,
  world: World,
  name: str,
  groups: Mapping[Any, Sequence[Question]],
) -> None:
  """Writes each group of questions as `NAME-GROUP.jsonl`."""
  for group, questions in groups.items():
    with json_lines(epath.Path(directory) / f"{name}-{group}.jsonl") as write:
      for question in questions:
        write(question_record(world, question))


def question_record(world: World, question: Question) -> dict[str, JsonValue]:
  """Returns a question's JSON record, with fields for diagnosis."""
  return {
    "id": question.id,
    "question": question.text,
    "answer": [question.answer],
    "subject": question.subject,
    "relation": world.facts[question.fact].relation.name,
    "documents": world.gold_ids[question.fact],
  }


def learn_vocabulary(
  directory: epath.PathLike,
  world: World,
  documents: Sequence[Document],
  *,
  num_sentinels: int = 0,
) -> None:
  """Writes a vocabulary, learned from documents and training questions.

  A reader that writes needs sentinels, `<extra_id_0>` and so on.
  """
  texts = [question.text for question in world.questions["train"]]
  for document in documents:
    texts += [document.title, document.text(world.facts)]
  pieces = train_vocabulary(texts, _VOCABULARY_SIZE)
  pieces += map(SENTINEL.format, range(num_sentinels))
  write_vocabulary(directory, WordpieceVocabulary(pieces, Normalization()))


def edit_facts(world: World, *, count: int, seed: int) -> World:
  """Changes facts that test questions ask for, in every document.

  Pairs of facts with the same relation exchange their values. So the edited
  world is as regular as the original: the frequency of each value is unchanged.

  The original world is not modified. In the returned world, only the answers of
  questions have changed. `count` must be even; the seed selects among the facts
  that test questions ask for, and there may be fewer than `count`.
  """
  facts = list(world.facts)
  for first, second in _choose_pairs(world, count // 2, seed):
    for index, other in ((first, second), (second, first)):
      value = world.facts[other].value
      facts[index] = dataclasses.replace(facts[index], value=value)

  def edited(one: Question) -> Question:
    # The answer of a question about a symmetric fact may be its subject.
    if facts[one.fact] == world.facts[one.fact]:
      return one
    return dataclasses.replace(one, answer=facts[one.fact].value)

  questions, statements = (
    {split: [*map(edited, group)] for split, group in of.items()}
    for of in (world.questions, world.statements)
  )
  return dataclasses.replace(
    world, facts=facts, questions=questions, statements=statements
  )


def _choose_pairs(
  world: World, num_pairs: int, seed: int
) -> list[tuple[int, int]]:
  """Chooses disjoint pairs of facts that test questions ask for.

  The facts of a pair have the same relation and different values. The pairs are
  spread over the relations.
  """
  of_relation: dict[str, list[int]] = collections.defaultdict(list)
  for question in world.questions["test"]:
    relation = world.facts[question.fact].relation
    # Exchanging spouses would also change the spouses of two other people.
    if not relation.is_symmetric:
      of_relation[relation.name].append(question.fact)
  generator = np.random.default_rng(seed)
  orders = [
    generator.permutation(facts).tolist() for facts in of_relation.values()
  ]
  # One pair from each relation before a second pair from any.
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
  directory: epath.PathLike, *, before: World, after: World
) -> None:
  """Writes an edited world and `questions-edited.jsonl`.

  That file has the test questions whose answers changed, in the format of
  `write_world`, with an additional field `old_answer`.
  """
  write_world(directory, after)
  with json_lines(epath.Path(directory) / "questions-edited.jsonl") as write:
    for old, new in zip(
      before.questions["test"], after.questions["test"], strict=True
    ):
      if old.answer != new.answer:
        record = question_record(after, new)
        write(record | {"old_answer": [old.answer]})
