import collections
import json
import re

import pytest

from realm_jax.demo_world import relations
from realm_jax.demo_world import world as world_lib


def words(text):
  return re.findall(r"\w+", text.lower())


def mentions(text, name):
  return re.search(rf"\b{re.escape(name)}\b", text) is not None


def read_lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_seed_makes_one_world_and_another_seed_another(
  small_world, small_sizes
):
  same, other = (
    world_lib.generate(world_lib.WorldConfig(seed=seed, **small_sizes))
    for seed in (3, 4)
  )
  assert same == small_world
  assert other != small_world


def test_names_are_unique_letters_and_foreign_to_the_wordings(demo_world):
  names = [entity.name for entity in demo_world.entities]
  assert len(set(map(str.lower, names))) == len(names)
  templates = {
    word
    for relation in relations.RELATIONS
    for template in relation.templates
    for word in words(template)
  }
  for name in names:
    for word in name.split():
      assert word.isalpha()
      assert word.isascii()
      assert word == word.capitalize()
      assert word.lower() not in templates


def test_every_word_occurs_often_enough_to_be_one_wordpiece(demo_world):
  counts = collections.Counter(
    word
    for d in demo_world.documents
    for word in words(d.text(demo_world.facts))
  )
  name_words = {word for e in demo_world.entities for word in words(e.name)}
  assert min(counts[word] for word in name_words) >= 6
  assert len(counts) <= 3000


def test_each_fact_is_stated_three_times_in_two_phrasings(demo_world):
  phrasings = collections.defaultdict(list)
  templates = collections.defaultdict(set)
  for document in demo_world.documents:
    for sentence in document.sentences:
      phrasings[sentence.fact].append(sentence.phrasing)
      templates[sentence.fact].add(sentence.template)
      relation = relations.BY_NAME[demo_world.facts[sentence.fact].relation]
      phrasing = relation.phrasings[sentence.phrasing]
      assert sentence.template in phrasing.wordings
  assert phrasings.keys() == set(range(len(demo_world.facts)))
  for fact, numbers in phrasings.items():
    assert (len(numbers), len(set(numbers))) == (3, 2)
    assert len(templates[fact]) == 3


def test_a_subject_has_one_value_of_a_relation_and_values_are_spread(
  demo_world,
):
  for relation in relations.RELATIONS:
    facts = [f for f in demo_world.facts if f.relation == relation.name]
    subjects = [f.subject for f in facts]
    if relation.is_symmetric:
      subjects += [f.value for f in facts]
    assert len(set(subjects)) == len(subjects)
    assert sorted(subjects) == sorted(
      e.name for e in demo_world.entities if e.kind == relation.subject
    )
    # As equal as can be: a masked subject follows from few values.
    counts = collections.Counter(f.value for f in facts).values()
    assert max(counts) - min(counts) <= 1
    assert all(f.value != f.subject for f in facts)
    if relation.has_entity_value:
      of_kind = {
        e.name for e in demo_world.entities if e.kind == relation.value
      }
      assert {f.value for f in facts} <= of_kind


def test_facts_connect_entities_of_one_split(demo_world):
  split_of = {}
  for split, questions in demo_world.questions.items():
    for question in questions:
      fact = demo_world.facts[question.fact]
      for name in (*fact.entities, fact.value):
        assert split_of.setdefault(name, split) == split


def test_the_files_hold_the_world(small_world, tmp_path):
  world_lib.write_world(tmp_path / "new" / "world", world=small_world)
  directory = tmp_path / "new" / "world"
  documents = read_lines(directory / "articles.jsonl")
  assert [d["id"] for d in documents] == [d.id for d in small_world.documents]
  assert len({d["id"] for d in documents}) == len(documents)
  text_of = {d["id"]: d["text"] for d in documents}
  files = [
    *(("questions", *item) for item in small_world.questions.items()),
    *(("statements", *item) for item in small_world.statements.items()),
  ]
  assert {(name, split) for name, split, _ in files} >= {
    ("questions", "train"),
    ("statements", "test"),
  }
  for name, split, questions in files:
    records = read_lines(directory / f"{name}-{split}.jsonl")
    assert [r["id"] for r in records] == [q.id for q in questions]
    for record in records:
      (answer,) = record["answer"]
      assert mentions(record["question"], record["subject"])
      assert record["relation"] in relations.BY_NAME
      for gold in record["gold_ids"]:
        assert mentions(text_of[gold], record["subject"])
        assert mentions(text_of[gold], answer)


def test_sizes_that_make_no_world_are_refused(small_sizes):
  with pytest.raises(ValueError, match="2 of kind company; every kind needs"):
    world_lib.WorldConfig(**(small_sizes | {"num_companies": 2}))
