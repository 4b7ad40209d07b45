import copy
import json
import re

import pytest

from realm_jax.demo_world import edits as edits_lib
from realm_jax.demo_world import relations


def mentions(text, name):
  return re.search(rf"\b{re.escape(name)}\b", text) is not None


@pytest.fixture(scope="module")
def edited(demo_world):
  return edits_lib.edit_facts(demo_world, count=20, seed=1)


def test_as_many_facts_change_as_asked(demo_world, edited):
  after, edits = edited
  changed = [
    (old, new)
    for old, new in zip(demo_world.facts, after.facts, strict=True)
    if old != new
  ]
  assert len(changed) == len(edits) == 20
  for old, new in changed:
    assert (old.relation, old.subject) == (new.relation, new.subject)
  assert {(e.relation, e.subject, e.new_answer) for e in edits} == {
    (new.relation, new.subject, new.value) for _, new in changed
  }


def test_values_stay_as_spread_as_they_were(demo_world, edited):
  after, _ = edited
  for relation in relations.RELATIONS:
    assert sorted(
      f.value for f in demo_world.facts if f.relation == relation.name
    ) == sorted(f.value for f in after.facts if f.relation == relation.name)


def test_the_world_before_is_left_as_it_was(demo_world):
  before = copy.deepcopy(demo_world)
  edits_lib.edit_facts(demo_world, count=20, seed=2)
  assert demo_world == before


def test_every_document_states_the_new_value_and_none_the_old(
  demo_world, edited
):
  after, edits = edited
  facts = {(f.relation, f.subject): i for i, f in enumerate(after.facts)}
  wordings = {
    name: relation.articles + relation.digests
    for name, relation in relations.BY_NAME.items()
  }
  sentences = {
    after.facts[sentence.fact].word(sentence.template)
    for document in after.documents
    for sentence in document.sentences
  }
  for edit in edits:
    index = facts[edit.relation, edit.subject]
    gold_ids = set(after.gold_ids(index))
    assert gold_ids
    for document in after.documents:
      if document.id in gold_ids:
        text = document.text(after.facts)
        assert mentions(text, edit.subject)
        assert mentions(text, edit.new_answer)
    for template in wordings[edit.relation]:
      old = template.format(s=edit.subject, o=edit.old_answer)
      assert old not in sentences


def test_documents_keep_their_number_titles_and_length(demo_world, edited):
  after, _ = edited
  for old, new in zip(demo_world.documents, after.documents, strict=True):
    assert (old.id, old.title) == (new.id, new.title)
    assert len(old.sentences) == len(new.sentences)
  changed = sum(
    old.text(demo_world.facts) != new.text(after.facts)
    for old, new in zip(demo_world.documents, after.documents, strict=True)
  )
  # Twenty facts stand in a few documents each; the others are untouched.
  assert 20 <= changed <= 20 * 8


def test_only_answers_to_edited_facts_change(demo_world, edited):
  after, edits = edited
  by_id = {edit.question_id: edit for edit in edits}
  assert after.questions.keys() == demo_world.questions.keys()
  for old, new in zip(
    demo_world.questions["test"], after.questions["test"], strict=True
  ):
    assert (old.id, old.text, old.fact) == (new.id, new.text, new.fact)
    if old.id in by_id:
      edit = by_id[old.id]
      assert (old.answer, new.answer) == (edit.old_answer, edit.new_answer)
      assert edit.question == old.text
      assert edit.old_answer != edit.new_answer
    else:
      assert old.answer == new.answer
  assert demo_world.questions["train"] == after.questions["train"]


def test_edits_are_spread_over_relations(edited):
  _, edits = edited
  # Two facts exchange values, and ten pairs are of ten relations.
  assert len({edit.relation for edit in edits}) == 10


def test_a_seed_chooses_the_edits(demo_world, edited):
  assert edits_lib.edit_facts(demo_world, count=20, seed=1) == edited
  _, other = edits_lib.edit_facts(demo_world, count=20, seed=2)
  assert other != edited[1]


def test_the_files_hold_old_and_new_answers(edited, tmp_path):
  after, edits = edited
  edits_lib.write_edited(tmp_path, world=after, edits=edits)
  lines = (tmp_path / "questions-edited.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  assert [
    (r["id"], r["question"], r["answer"], r["old_answer"]) for r in records
  ] == [
    (e.question_id, e.question, [e.new_answer], [e.old_answer]) for e in edits
  ]
  text_of = {
    json.loads(line)["id"]: json.loads(line)["text"]
    for line in (tmp_path / "articles.jsonl").read_text().splitlines()
  }
  for record in records:
    for gold in record["gold_ids"]:
      assert mentions(text_of[gold], record["answer"][0])


@pytest.mark.parametrize(
  ("count", "message"),
  [
    (3, "count=3 is odd"),
    (100_000, "count=100000 facts to change, but the test questions allow"),
  ],
)
def test_counts_that_cannot_be_are_refused(small_world, count, message):
  with pytest.raises(ValueError, match=message):
    edits_lib.edit_facts(small_world, count=count, seed=0)
