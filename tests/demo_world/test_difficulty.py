"""What makes the world worth learning from, and not solved without."""

import collections
import re

import numpy as np
import pytest

from realm_jax.demo_world import names


@pytest.fixture(scope="module")
def texts(demo_world):
  return [d.text(demo_world.facts) for d in demo_world.documents]


def test_finding_the_subject_is_not_finding_the_fact(demo_world, texts):
  """Of the blocks that name the subject, most do not answer the question."""
  shares, naming = [], []
  for question in demo_world.questions["test"]:
    blocks = [text for text in texts if question.subject in text]
    with_answer = [
      text
      for text in blocks
      if re.search(rf"\b{re.escape(question.answer)}\b", text)
    ]
    naming.append(len(blocks))
    shares.append(len(with_answer) / len(blocks))
  assert 15 <= np.median(naming) <= 30
  assert np.mean(shares) < 0.2


def test_what_a_mask_hides_stands_in_another_block(demo_world):
  """So that pre-training can fill it in by looking it up."""
  stated = collections.Counter(
    sentence.fact for d in demo_world.documents for sentence in d.sentences
  )
  recoverable = [
    stated[sentence.fact] > 1
    for d in demo_world.documents
    for sentence in d.sentences
  ]
  assert np.mean(recoverable) > 0.98


def test_the_tagger_finds_all_names_with_their_kinds_and_all_numbers(
  demo_world,
):
  """And nothing else, which no other block could tell."""
  kinds = {entity.name: entity.kind for entity in demo_world.entities}
  for document in demo_world.documents:
    text = document.text(demo_world.facts)
    wanted = set()
    start = 0
    for sentence in document.sentences:
      fact = demo_world.facts[sentence.fact]
      said = fact.word(sentence.template)
      for name in (fact.subject, fact.value):
        at = start + re.search(rf"\b{re.escape(name)}\b", said).start()
        wanted.add((at, at + len(name), kinds.get(name, "number")))
      start += len(said) + 1
    assert set(names.tag(text, document.title)) == wanted
