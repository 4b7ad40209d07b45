"""What makes the world worth learning from, and not solved without."""

import collections
import dataclasses
import itertools
import re

import numpy as np
import pytest

from experiments.world import names, relations
from experiments.world import second_language as second_lib
from experiments.world import world as world_lib
from tests.json_lines import read_lines

_SMALL = world_lib.WorldConfig(
  seed=3, num_people=80, num_cities=80, num_companies=30
)
# Words that say nothing about which relation is meant.
_FUNCTION_WORDS = set(
  "a an and are as at be been by did do does for from had has have how in "
  "into is it its of on or out over that the their they through to up was "
  "were what when where which who whom whose with".split()
)


def _words(text):
  return set(re.findall(r"\w+", text.replace("'", "").lower()))


def _content(templates):
  """The words of templates that carry meaning, without the names."""
  text = " ".join(templates).replace("{s}", " ").replace("{o}", " ")
  return _words(text) - _FUNCTION_WORDS


def _mentions(text, name):
  return re.search(rf"\b{re.escape(name)}\b", text) is not None


@pytest.fixture(scope="module")
def demo_world():
  """The world that the demo trains on; a second to make."""
  return world_lib.generate()


@pytest.fixture(scope="module")
def small_world():
  """A world of some 600 documents, a fifth of the demo's."""
  return world_lib.generate(_SMALL)


@pytest.fixture(scope="module")
def texts(demo_world):
  return [d.text(demo_world.facts) for d in demo_world.documents]


@pytest.fixture(scope="module")
def stated(demo_world):
  """The sentences that state each fact."""
  stated = collections.defaultdict(list)
  for document in demo_world.documents:
    for sentence in document.sentences:
      stated[sentence.fact].append(sentence)
  return stated


def test_phrasings_and_questions_have_no_content_word_in_common():
  for relation in relations.RELATIONS:
    assert len(relation.phrasings) >= 3
    assert len(set(relation.questions)) >= 3
    groups = [_content((*p.wordings, p.unseen)) for p in relation.phrasings]
    groups.append(_content(relation.questions))
    for one, other in itertools.combinations(groups, 2):
      assert not one & other
  # Statements have no words of their own.
  phrasings = [p for r in relations.RELATIONS for p in r.phrasings]
  seen = [wording for p in phrasings for wording in p.wordings]
  unseen = [p.unseen for p in phrasings]
  assert _words(" ".join(unseen)) <= _words(" ".join(seen))


def test_a_seed_makes_one_world_and_another_seed_another(small_world):
  assert world_lib.generate(_SMALL) == small_world
  other = dataclasses.replace(_SMALL, seed=4)
  assert world_lib.generate(other) != small_world


def test_a_subject_has_one_value_of_a_relation_and_values_are_spread(
  demo_world,
):
  for relation in relations.RELATIONS:
    facts = [f for f in demo_world.facts if f.relation == relation]
    subjects = [f.subject for f in facts]
    if relation.is_symmetric:
      subjects += [f.value for f in facts]
    assert sorted(subjects) == sorted(demo_world.entities[relation.subject])
    # As equal as can be: a masked subject follows from few values.
    counts = collections.Counter(f.value for f in facts).values()
    assert max(counts) - min(counts) <= 1
    if relation.has_entity_value:
      assert {f.value for f in facts} <= {*demo_world.entities[relation.value]}


def test_the_fact_answers_the_question_and_nothing_else_does(demo_world):
  split_of = {}
  values = collections.defaultdict(set)
  for fact in demo_world.facts:
    values[fact.relation, fact.subject].add(fact.value)
    if fact.relation.is_symmetric:
      values[fact.relation, fact.value].add(fact.subject)
  for split, questions in demo_world.questions.items():
    for question in questions:
      fact = demo_world.facts[question.fact]
      # It connects entities of one split.
      for name in (*fact.entities, fact.value):
        assert split_of.setdefault(name, split) == split
      assert values[fact.relation, question.subject] == {question.answer}
      assert _mentions(question.text, question.subject)
      assert not _mentions(question.text, question.answer)
    asked = [(question.fact, question.subject) for question in questions]
    # The score of a held-out split counts facts.
    assert split == "train" or len(set(asked)) == len(asked)


def test_a_masked_statement_says_what_is_asked_in_an_unseen_wording(
  demo_world, stated
):
  sentences = {
    demo_world.facts[fact].word(sentence.template)
    for fact, group in stated.items()
    for sentence in group
  }
  for split in ("validation", "test"):
    statements = demo_world.statements[split]
    asked = {question.fact for question in demo_world.questions[split]}
    assert sorted(s.fact for s in statements) == sorted(asked)
    for statement in statements:
      fact = demo_world.facts[statement.fact]
      assert statement.text.count("[MASK]") == 1
      said = statement.text.replace("[MASK]", statement.answer)
      assert _mentions(said, fact.subject)
      assert _mentions(said, fact.value)
      assert said not in sentences


def test_finding_the_subject_is_not_finding_the_fact(demo_world, texts):
  """Of the blocks that name the subject, most do not answer the question."""
  shares = []
  for question in demo_world.questions["test"]:
    blocks = [text for text in texts if question.subject in text]
    answering = [text for text in blocks if _mentions(text, question.answer)]
    shares.append(len(answering) / len(blocks))
  assert np.mean(shares) < 0.2


def test_the_tagger_finds_all_names_with_their_kinds_and_all_numbers(
  demo_world, texts
):
  """And nothing else, which no other block could tell."""
  kinds = {
    name: kind for kind, group in demo_world.entities.items() for name in group
  }
  for document, text in zip(demo_world.documents, texts, strict=True):
    expected, start = set(), 0
    for sentence in document.sentences:
      fact = demo_world.facts[sentence.fact]
      said = fact.word(sentence.template)
      for name in (fact.subject, fact.value):
        at = start + re.search(rf"\b{re.escape(name)}\b", said).start()
        expected.add((at, at + len(name), kinds.get(name, "number")))
      start += len(said) + 1
    assert set(names.tag(text, document.title)) == expected


def test_edited_facts_exchange_their_values(demo_world):
  edited = world_lib.edit_facts(demo_world, count=20, seed=1)
  pairs = zip(demo_world.facts, edited.facts, strict=True)
  facts = [(old, new) for old, new in pairs if old != new]
  assert len(facts) == 20
  # The pairs are of all ten relations that have a direction.
  assert len({new.relation for _, new in facts}) == 10
  assert sorted(old.value for old, _ in facts) == sorted(
    new.value for _, new in facts
  )
  assert edited.documents == demo_world.documents
  # Only answers to edited facts change.
  assert edited.questions["train"] == demo_world.questions["train"]
  tests = (world.questions["test"] for world in (demo_world, edited))
  changed = [(old, new) for old, new in zip(*tests, strict=True) if old != new]
  assert {(new.subject, new.answer) for _, new in changed} == {
    (new.subject, new.value) for _, new in facts
  }


def _require_gold_articles(folder, records):
  """The articles say what the records name as their sources."""
  articles = read_lines(folder / "articles.jsonl")
  text_of = {article["id"]: article["text"] for article in articles}
  for record in records:
    (answer,) = record["answer"]
    for gold in record["documents"]:
      assert _mentions(text_of[gold], record["subject"])
      assert _mentions(text_of[gold], answer)


def test_the_files_hold_the_world_and_an_edited_one(small_world, tmp_path):
  world_lib.write_world(tmp_path / "world", small_world)
  for name in ("questions", "statements"):
    for split, questions in getattr(small_world, name).items():
      records = read_lines(tmp_path / "world" / f"{name}-{split}.jsonl")
      assert [r["id"] for r in records] == [q.id for q in questions]
      _require_gold_articles(tmp_path / "world", records)

  after = world_lib.edit_facts(small_world, count=4, seed=1)
  world_lib.write_edited(tmp_path, before=small_world, after=after)
  records = read_lines(tmp_path / "questions-edited.jsonl")
  assert len(records) == 4
  _require_gold_articles(tmp_path, records)
  old_answers = {q.id: q.answer for q in small_world.questions["test"]}
  assert [(r["id"], r["answer"], r["old_answer"]) for r in records] == [
    (q.id, [q.answer], [old_answers[q.id]])
    for q in after.questions["test"]
    if q.answer != old_answers[q.id]
  ]


# --- A second language ---------------------------------------------------


@pytest.fixture(scope="module", params=[False, True])
def second(request, small_world):
  """What is written in an invented language, and in a transliterated one."""
  config = second_lib.SecondLanguageConfig(request.param, 0.3)
  return second_lib.write_in_second_language(small_world, config, seed=3)


def test_the_languages_share_names_and_numbers_alone(small_world, second):
  first, shared = (
    _words(" ".join(document.text(small_world.facts) for document in documents))
    for documents in (small_world.documents, second[0])
  )
  shared &= first
  names_and_numbers = (f"{f.subject} {f.value}" for f in small_world.facts)
  known = {*" ".join(names_and_numbers).lower().split()}
  assert shared <= known
  assert len(shared) > len(known) / 2


def test_a_statement_asks_for_what_is_stated_where_its_file_says(
  small_world, second
):
  documents, by_languages = second
  assert len(documents) == round(0.3 * len(small_world.documents))
  sentences = [s for document in documents for s in document.sentences]
  stated = {sentence.fact for sentence in sentences}
  templates = {sentence.template for sentence in sentences}
  asked = [*by_languages["first"], *by_languages["both"]]
  of_first = {s.fact for s in small_world.statements["test"]}
  assert {s.fact for s in asked} == of_first
  for stated_in, statements in by_languages.items():
    assert statements
    for statement in statements:
      assert (statement.fact in stated) == (stated_in == "both")
      assert statement.answer == small_world.facts[statement.fact].value
      template = statement.text.replace("[MASK]", "{o}")
      assert template.replace(statement.subject, "{s}") not in templates


def test_the_tagger_finds_the_names_of_the_second_language(small_world, second):
  for document in second[0][:100]:
    said = document.text(small_world.facts).encode()
    tagged = {
      said[start:limit].decode()
      for start, limit, _ in names.tag(said.decode(), "")
    }
    facts = [small_world.facts[s.fact] for s in document.sentences]
    assert tagged == {name for f in facts for name in (f.subject, f.value)}
