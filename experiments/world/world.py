"""A whole demo world: generated from a seed, and written as files."""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from experiments.world import documents as documents_lib
from experiments.world import facts as facts_lib
from experiments.world import names
from experiments.world import questions as questions_lib
from experiments.world.relations import EntityKind
from realm_jax.errors import RealmError
from realm_jax.settings import Fraction, NonNegativeInt, require_valid
from realm_jax.storage.json_files import JsonValue, json_lines
from realm_jax.text.vocabulary_training import train_vocabulary
from realm_jax.text.wordpieces import write_pieces

_VOCABULARY_SIZE = 8000
_MIN_OF_KIND = len(facts_lib.SPLITS)
_HELD_OUT: tuple[facts_lib.Split, ...] = ("validation", "test")


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

  Raises:
    ValueError: A number is too small for a world.
  """

  seed: NonNegativeInt = 0
  num_people: int = 300
  num_cities: int = 300
  num_companies: int = 110
  num_train_questions: NonNegativeInt = 12000
  num_validation_questions: NonNegativeInt = 200
  num_test_questions: NonNegativeInt = 400
  held_out_test: Fraction = 0.2
  held_out_validation: Fraction = 0.08

  def __post_init__(self) -> None:
    require_valid(self)
    for kind, count in self.num_entities.items():
      if count < _MIN_OF_KIND:
        raise RealmError(
          f"{count} of kind {kind}; every kind needs at least {_MIN_OF_KIND}, "
          "so that every split of the questions has one"
        )

  @property
  def num_entities(self) -> dict[EntityKind, int]:
    """Number of entities of each kind."""
    return {
      "person": self.num_people,
      "city": self.num_cities,
      "company": self.num_companies,
    }


@dataclasses.dataclass(frozen=True)
class World:
  """A fictional world, the facts in it, and questions about them."""

  entities: facts_lib.Entities
  facts: Sequence[facts_lib.Fact]
  documents: Sequence[documents_lib.Document]
  questions: Mapping[facts_lib.Split, Sequence[questions_lib.Question]]
  statements: Mapping[facts_lib.Split, Sequence[questions_lib.Question]]

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
  entities = names.make_entities(generator, config.num_entities)
  split = facts_lib.split_entities(
    generator,
    entities,
    held_out={
      "test": config.held_out_test,
      "validation": config.held_out_validation,
    },
  )
  facts = facts_lib.make_facts(generator, list(split.values()))
  documents = documents_lib.write_notes(generator, facts)
  questions = questions_lib.make_questions(
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
    held_out: questions_lib.make_statements(
      generator, facts, questions[held_out], stated
    )
    for held_out in _HELD_OUT
  }
  return World(entities, facts, documents, questions, statements)


def write_world(directory: epath.PathLike, world: World) -> None:
  """Writes a world's documents and questions to a directory.

  They are `articles.jsonl`, `questions-SPLIT.jsonl`, and
  `statements-SPLIT.jsonl` of the held-out splits.
  """
  directory = epath.Path(directory)
  write_articles(directory / "articles.jsonl", world, world.documents)
  for name in ("questions", "statements"):
    for split, group in getattr(world, name).items():
      write_questions(directory / f"{name}-{split}.jsonl", world, group)


def write_articles(
  path: epath.Path,
  world: World,
  documents: Sequence[documents_lib.Document],
  **fields: str,
) -> None:
  """Writes documents as lines of JSON, each with these further fields."""
  with json_lines(path) as write:
    for document in documents:
      text = document.text(world.facts)
      write(
        {"id": document.id, "title": document.title, "text": text, **fields}
      )


def write_questions(
  path: epath.Path, world: World, questions: Sequence[questions_lib.Question]
) -> None:
  """Writes questions as lines of JSON, with what a diagnosis needs."""
  with json_lines(path) as write:
    for question in questions:
      write(question_record(world, question))


def question_record(
  world: World, question: questions_lib.Question
) -> dict[str, JsonValue]:
  """Returns a question as its line of JSON."""
  return {
    "id": question.id,
    "question": question.text,
    "answer": [question.answer],
    "subject": question.subject,
    "relation": world.facts[question.fact].relation,
    "gold_ids": world.gold_ids[question.fact],
  }


def write_vocabulary(
  path: epath.PathLike,
  world: World,
  more: Sequence[documents_lib.Document] = (),
) -> None:
  """Writes the wordpieces of documents and training questions.

  `more` documents, such as those of another language, join the world's.
  """
  texts = [question.text for question in world.questions["train"]]
  for document in (*world.documents, *more):
    texts += [document.title, document.text(world.facts)]
  write_pieces(path, train_vocabulary(texts, _VOCABULARY_SIZE))
