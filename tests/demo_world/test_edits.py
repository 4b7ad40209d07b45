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
