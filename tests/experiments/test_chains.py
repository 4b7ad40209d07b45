"""A world with pages, and questions that need a note and a page."""

import collections
import itertools
import json

import pytest

from experiments.world import chains as chains_lib
from experiments.world.facts import SPLITS
from experiments.world.world import WorldConfig, generate

_SIZE = WorldConfig(num_people=60, num_cities=60, num_companies=30)


@pytest.fixture(scope="module")
def chained():
  world = generate(_SIZE)
  config = chains_lib.ChainConfig()
  return world, chains_lib.add_chains(world, config, seed=0)


def test_the_world_before_stays_as_it_was(chained):
  world, chains = chained
  assert world == generate(_SIZE)
  assert chains.world.facts[: len(world.facts)] == world.facts
  notes = [one for one in chains.world.documents if one.id.startswith("note")]
  assert {one.id: one for one in notes} == {
    one.id: one for one in world.documents
  }
  assert chains.world.questions == world.questions


def test_only_a_page_after_a_note_answers(chained):
  _, chains = chained
  world = chains.world
  texts = {one.id: one.text(world.facts) for one in world.documents}
  titles = {one.id: one.title for one in world.documents}
  stated = collections.Counter(
    world.facts[sentence.fact]
    for document in world.documents
    for sentence in document.sentences
  )
  for question in itertools.chain(*chains.questions.values()):
    first, second = (world.facts[i] for i in (question.fact, question.second))
    assert first.value == second.subject and second.value == question.answer
    assert first.subject in question.text
    assert second.subject not in question.text
    notes, (page,) = chains.record(question)["hops"]
    # A note leads to the page, whose title it mentions.
    assert all(titles[page] in texts[note] for note in notes)
    assert [k for k, text in texts.items() if question.answer in text] == [page]
    assert stated[second] == 1


def test_splits_share_no_person_and_no_company(chained):
  world, chains = chained
  named = {
    split: {
      name
      for question in chains.questions[split]
      for fact in (question.fact, question.second)
      for name in chains.world.facts[fact].entities
    }
    for split in SPLITS
  }
  for one, other in itertools.combinations(SPLITS, 2):
    assert named[one].isdisjoint(named[other])
  trained = {*world.splits["train"]["company"]}
  assert {question.subject for question in chains.single} <= trained


def test_mixtures_have_every_path_of_every_question(chained, tmp_path):
  _, chains = chained
  chains_lib.write_questions(tmp_path, chains, seed=0)
  rows = {
    name: [
      json.loads(line)
      for line in (tmp_path / f"chains-{name}.jsonl").read_text().splitlines()
    ]
    for name in ("train", "one", "all", "gold")
  }
  assert len(rows["all"]) == len(rows["train"]) + len(rows["one"])
  paths = {}
  for row in rows["gold"]:
    question = row["id"].rpartition("-")[0]
    paths.setdefault(question, set()).add(tuple(row["gold_ids"]))
  for row in rows["all"]:
    hops = row.get("hops", [row["documents"]])
    assert paths[row["id"]] == {*itertools.product(*hops)}
