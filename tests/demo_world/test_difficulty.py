"""What makes the world worth learning from, and not solved without."""

import collections
import re

import numpy as np
import pytest

from realm_jax.demo_world import relations
from realm_jax.text import salient_spans


def words(text):
  return re.findall(r"\w+", text.lower())


@pytest.fixture(scope="module")
def texts(demo_world):
  return [d.text(demo_world.facts) for d in demo_world.documents]


def test_a_block_is_short(demo_world):
  # Words, full stops and the title; a name or number is one wordpiece.
  lengths = [
    len(words(d.title)) + len(words(text)) + text.count(".")
    for d in demo_world.documents
    for text in [d.text(demo_world.facts)]
  ]
  assert np.mean(lengths) <= 30
  assert max(lengths) <= 37


def test_a_question_shares_only_names_with_the_text_that_answers_it(
  demo_world,
):
  function_words = set(
    "a an and are as at be been by did do does for from had has have how in "
    "into is it of on or out that the to up was were what when where which "
    "who whom whose with".split()
  )
  templates = collections.defaultdict(set)
  for relation in relations.RELATIONS:
    for template in set(relation.templates) - set(relation.questions):
      templates[relation.name] |= set(words(template)) - {"s", "o"}
  for question in demo_world.questions["test"]:
    asked = set(words(question.text)) - set(words(question.subject))
    said = templates[demo_world.facts[question.fact].relation]
    assert not (asked & said) - function_words


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


def test_the_built_in_tagger_finds_a_mask_for_each_sentence(demo_world):
  """And masks nothing but names, numbers and dates, which other blocks tell."""
  num_found = num_right = num_sentences = num_masked = 0
  for document in demo_world.documents[::5]:
    text = document.text(demo_world.facts)
    tagged = {
      (span.start, span.limit)
      for span in salient_spans.tag(text, document.title)
    }
    num_found += len(tagged)
    start = 0
    for sentence in document.sentences:
      fact = demo_world.facts[sentence.fact]
      said = fact.word(sentence.template)
      wanted = set()
      for name in (fact.subject, fact.value):
        at = start + re.search(rf"\b{re.escape(name)}\b", said).start()
        wanted.add((at, at + len(name)))
      num_right += len(tagged & wanted)
      num_masked += bool(tagged & wanted)
      num_sentences += 1
      start += len(said) + 1
  assert num_right / num_found > 0.98
  # A name that opens a sentence counts only if it stands elsewhere, too.
  assert num_masked / num_sentences > 0.98
