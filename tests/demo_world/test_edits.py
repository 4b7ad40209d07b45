import json
import re

import pytest

from realm_jax.demo_world import edits, relations


def mentions(text, name):
  return re.search(rf"\b{re.escape(name)}\b", text) is not None


@pytest.fixture(scope="module")
def edited(demo_world):
  return edits.edit_facts(demo_world, count=20, seed=1)


@pytest.fixture(scope="module")
def changed(demo_world, edited):
  """The test questions whose answers changed, before and after."""
  pairs = zip(
    demo_world.questions["test"], edited.questions["test"], strict=True
  )
  return [(old, new) for old, new in pairs if old != new]


def test_as_many_facts_change_as_asked(demo_world, edited, changed):
  facts = [
    (old, new)
    for old, new in zip(demo_world.facts, edited.facts, strict=True)
    if old != new
  ]
  assert len(facts) == len(changed) == 20
  for old, new in facts:
    assert (old.relation, old.subject) == (new.relation, new.subject)
  # Two facts exchange values, and the pairs are of all ten relations that have
  # a direction.
  assert len({new.relation for _, new in facts}) == 10
  assert {(q.subject, q.answer) for _, q in changed} == {
    (new.subject, new.value) for _, new in facts
  }


def test_every_document_states_the_new_value_and_none_the_old(edited, changed):
  sentences = {
    edited.facts[sentence.fact].word(sentence.template)
    for document in edited.documents
    for sentence in document.sentences
  }
  for old, new in changed:
    relation = relations.BY_NAME[edited.facts[new.fact].relation]
    gold_ids = set(edited.gold_ids[new.fact])
    assert gold_ids
    for document in edited.documents:
      if document.id in gold_ids:
        text = document.text(edited.facts)
        assert mentions(text, new.subject)
        assert mentions(text, new.answer)
    for template in relation.templates:
      assert template.format(s=old.subject, o=old.answer) not in sentences


def test_only_answers_to_edited_facts_change(demo_world, edited, changed):
  assert edited.questions.keys() == demo_world.questions.keys()
  for old, new in changed:
    assert (old.id, old.text, old.fact) == (new.id, new.text, new.fact)
    assert old.answer != new.answer
  assert demo_world.questions["train"] == edited.questions["train"]


def test_the_files_hold_old_and_new_answers(small_world, tmp_path):
  after = edits.edit_facts(small_world, count=4, seed=1)
  edits.write_edited(tmp_path, before=small_world, after=after)
  questions, articles = (
    [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    for name in ("questions-edited.jsonl", "articles.jsonl")
  )
  old_answers = {q.id: q.answer for q in small_world.questions["test"]}
  assert [
    (q["id"], q["question"], q["answer"], q["old_answer"]) for q in questions
  ] == [
    (q.id, q.text, [q.answer], [old_answers[q.id]])
    for q in after.questions["test"]
    if q.answer != old_answers[q.id]
  ]
  assert len(questions) == 4
  text_of = {article["id"]: article["text"] for article in articles}
  for question in questions:
    for gold in question["gold_ids"]:
      assert mentions(text_of[gold], question["answer"][0])


def test_counts_that_cannot_be_are_refused(small_world):
  with pytest.raises(ValueError, match="count=3 is odd"):
    edits.edit_facts(small_world, count=3, seed=0)
