"""A whole demo world: generated from a seed, edited, and written as files."""

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

  If a relation has more subjects than values, such as more people than cities
  to be born in, values are used again, and masked subjects can no longer be
  told apart. So people and cities should be the most numerous.

  Attributes:
    seed: Seed of everything that is drawn.
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
  """Generates a world, which is always the same for the same configuration."""
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

  They are `articles.jsonl`, `questions-SPLIT.jsonl`, and
  `statements-SPLIT.jsonl` of the held-out splits.
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
  """Writes documents as lines of JSON, each with these further fields."""
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
  """Returns a question as its line of JSON, with what a diagnosis needs."""
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
  """Writes a vocabulary of documents and of the training questions.

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

  def edited(one: Question) -> Question:
    # A question about a symmetric fact may have its subject as the answer.
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

  The facts of a pair have the same relation and different values, and the pairs
  are spread over the relations.
  """
  asked: dict[str, list[int]] = collections.defaultdict(list)
  for question in world.questions["test"]:
    relation = world.facts[question.fact].relation
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
  directory: epath.PathLike, *, before: World, after: World
) -> None:
  """Writes an edited world and `questions-edited.jsonl`.

  That file has the test questions whose answers changed, as `write_world`
  writes them, with the field `old_answer`.
  """
  write_world(directory, after)
  with json_lines(epath.Path(directory) / "questions-edited.jsonl") as write:
    for old, new in zip(
      before.questions["test"], after.questions["test"], strict=True
    ):
      if old.answer != new.answer:
        record = question_record(after, new)
        write(record | {"old_answer": [old.answer]})
