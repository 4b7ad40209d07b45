"""The second language: what it shares with the first, and what it states."""

import re

import numpy as np
import pytest

from realm_jax.demo_world import names
from realm_jax.demo_world import second_language as second_lib
from realm_jax.demo_world.second_language import (
  SecondLanguageConfig,
  write_in_second_language,
)

_KINDS = pytest.mark.parametrize("is_transliterated", [False, True])


@pytest.fixture(scope="module")
def written(small_world):
  """The documents and statements of each kind of language."""
  return {
    is_transliterated: write_in_second_language(
      small_world, SecondLanguageConfig(is_transliterated, 0.3), seed=3
    )
    for is_transliterated in (False, True)
  }


def _words(documents, world):
  texts = [f"{d.title} {d.text(world.facts)}" for d in documents]
  return set(re.findall(r"\w+", " ".join(texts).lower()))


@_KINDS
def test_the_languages_share_names_and_numbers_alone(
  small_world, written, is_transliterated
):
  shared = _words(small_world.documents, small_world) & _words(
    written[is_transliterated].documents, small_world
  )
  known = {
    word
    for fact in small_world.facts
    for name in (fact.subject, fact.value)
    for word in name.lower().split()
  }
  assert shared <= known
  assert len(shared) > len(known) / 2


def test_words_are_replaced_one_by_one_and_the_invented_order_is_reversed():
  generator = np.random.default_rng(0)
  for is_transliterated, step in ((False, -1), (True, 1)):
    translate = second_lib.Translator(is_transliterated, generator).translate
    first, second = (
      translate(template).removesuffix(".").split()[::step]
      for template in ("{s} lives in {o}.", "In {o} lives {s}.")
    )
    subject, lives, inside, value = first
    assert (subject, value) == ("{s}", "{o}")
    wanted = [inside.lower(), value, lives.lower(), subject]
    assert [word.lower() for word in second] == wanted
    assert translate("{s} lives in {o}.").endswith(".")


@_KINDS
def test_a_statement_asks_for_what_is_stated_where_its_file_says(
  small_world, written, is_transliterated
):
  second = written[is_transliterated]
  stated: dict[int, set[int]] = {}
  templates = set()
  for document in second.documents:
    for sentence in document.sentences:
      stated.setdefault(sentence.fact, set()).add(sentence.phrasing)
      templates.add(sentence.template)
  assert len(second.documents) == round(0.3 * len(small_world.documents))
  asked = second.statements["first"] + second.statements["both"]
  assert {s.fact for s in asked} == {
    s.fact for s in small_world.statements["test"]
  }
  for stated_in, statements in second.statements.items():
    assert statements
    for statement in statements:
      fact = small_world.facts[statement.fact]
      assert (statement.fact in stated) == (stated_in == "both")
      assert statement.answer == fact.value
      template = statement.text.replace("[MASK]", "{o}").replace(
        statement.subject, "{s}"
      )
      assert template not in templates


@_KINDS
def test_the_tagger_finds_the_names_of_the_second_language(
  small_world, written, is_transliterated
):
  for document in written[is_transliterated].documents[:100]:
    text = document.text(small_world.facts)
    said = text.encode()
    found = {
      said[start:limit].decode() for start, limit, _ in names.tag(text, "")
    }
    facts = [small_world.facts[s.fact] for s in document.sentences]
    assert found == {name for f in facts for name in (f.subject, f.value)}
