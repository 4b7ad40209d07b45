"""A whole demo world: made from a seed, and written as files."""

import dataclasses
import json
from collections.abc import Iterable

import numpy as np
from etils import epath

from realm_jax.demo_world import documents as documents_lib
from realm_jax.demo_world import facts as facts_lib
from realm_jax.demo_world import questions as questions_lib
from realm_jax.demo_world import relations, splits

_MIN_OF_KIND = len(splits.SPLITS)


@dataclasses.dataclass(frozen=True)
class World:
  """A fictional encyclopedia, what it states, and questions about it."""

  entities: tuple[facts_lib.Entity, ...]
  facts: tuple[facts_lib.Fact, ...]
  documents: tuple[documents_lib.Document, ...]
  questions: dict[splits.Split, tuple[questions_lib.Question, ...]]

  def gold_ids(self, fact: int) -> list[str]:
    """The ids of the documents that state a fact."""
    return [
      document.id
      for document in self.documents
      if any(sentence.fact == fact for sentence in document.sentences)
    ]


def generate(
  seed: int,
  *,
  num_people: int = 120,
  num_cities: int = 120,
  num_countries: int = 40,
  num_rivers: int = 40,
  num_companies: int = 80,
  num_books: int = 80,
  told_elsewhere: float = 0.7,
  facts_per_digest: int = 6,
  num_train_questions: int = 4000,
  num_validation_questions: int = 200,
  num_test_questions: int = 400,
  held_out_test: float = 0.2,
  held_out_validation: float = 0.08,
) -> World:
  """Makes a world; the same arguments always make the same one.

  Where a relation has more subjects than values (more people than cities to
  be born in), values are used again and masked subjects can no longer be
  told apart, so keep people and cities the most numerous.

  Args:
    seed: of everything drawn.
    num_people, num_cities, num_countries, num_rivers, num_companies,
      num_books: entities, each with an article.
    told_elsewhere: share of facts told only in another entity's article.
    facts_per_digest: the most facts that a digest restates.
    num_train_questions, num_validation_questions, num_test_questions: at most
      so many questions of each split.
    held_out_test, held_out_validation: share of the entities of each kind
      that only questions of that split mention or have as their answer.

  Raises:
    ValueError: a number is too small for a world or too large for its names.
  """
  counts: dict[relations.EntityKind, int] = {
    "person": num_people,
    "city": num_cities,
    "country": num_countries,
    "river": num_rivers,
    "company": num_companies,
    "book": num_books,
  }
  for kind, count in counts.items():
    if count < _MIN_OF_KIND:
      raise ValueError(
        f"{count} of kind {kind}; every kind needs at least {_MIN_OF_KIND}, "
        "so that every split of the questions has one"
      )
  if facts_per_digest < 2:
    raise ValueError(
      f"facts_per_digest={facts_per_digest}; a digest needs at least 2, or "
      "there is nothing to tell apart in it"
    )
  generator = np.random.default_rng(seed)
  entities = facts_lib.make_entities(generator, counts)
  split = splits.split_entities(
    generator,
    entities,
    held_out={"test": held_out_test, "validation": held_out_validation},
  )
  facts = facts_lib.make_facts(generator, list(split.values()))
  documents = documents_lib.make_documents(
    generator,
    entities,
    facts,
    told_elsewhere=told_elsewhere,
    facts_per_digest=facts_per_digest,
  )
  questions = questions_lib.make_questions(
    generator,
    facts,
    {e.name: name for name, group in split.items() for e in group},
    counts={
      "train": num_train_questions,
      "validation": num_validation_questions,
      "test": num_test_questions,
    },
  )
  return World(
    tuple(entities),
    tuple(facts),
    tuple(documents),
    {split: tuple(group) for split, group in questions.items()},
  )


def write_world(directory: epath.PathLike, *, world: World) -> None:
  """Writes `articles.jsonl` and `questions-<split>.jsonl` to a directory."""
  directory = epath.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  write_lines(
    directory / "articles.jsonl",
    (
      {
        "id": document.id,
        "title": document.title,
        "text": document.text(world.facts),
      }
      for document in world.documents
    ),
  )
  for split, questions in world.questions.items():
    write_lines(
      directory / f"questions-{split}.jsonl",
      (question_record(world, question) for question in questions),
    )


def question_record(
  world: World, question: questions_lib.Question
) -> dict[str, object]:
  """A question as its line of JSON, with what a diagnosis needs."""
  return {
    "id": question.id,
    "question": question.text,
    "answer": [question.answer],
    "subject": question.subject,
    "relation": world.facts[question.fact].relation,
    "gold_ids": world.gold_ids(question.fact),
  }


def write_lines(path: epath.Path, records: Iterable[dict]) -> None:
  lines = [json.dumps(record) + "\n" for record in records]
  path.write_text("".join(lines))
