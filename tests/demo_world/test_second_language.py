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


@pytest.fixture(scope="module", params=[False, True])
def second(request, small_world):
  """What is written in an invented language, and in a transliterated one."""
  config = SecondLanguageConfig(request.param, 0.3)
  return write_in_second_language(small_world, config, seed=3)


def _words(documents, world):
  texts = [f"{d.title} {d.text(world.facts)}" for d in documents]
  return set(re.findall(r"\w+", " ".join(texts).lower()))


def test_the_languages_share_names_and_numbers_alone(small_world, second):
  shared = _words(small_world.documents, small_world) & _words(
    second.documents, small_world
  )
  names_and_numbers = (f"{f.subject} {f.value}" for f in small_world.facts)
  known = {*" ".join(names_and_numbers).lower().split()}
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


def test_a_statement_asks_for_what_is_stated_where_its_file_says(
  small_world, second
):
  assert len(second.documents) == round(0.3 * len(small_world.documents))
  sentences = [s for document in second.documents for s in document.sentences]
  stated = {sentence.fact for sentence in sentences}
  templates = {sentence.template for sentence in sentences}
  asked = [*second.statements["first"], *second.statements["both"]]
  of_first = {s.fact for s in small_world.statements["test"]}
  assert {s.fact for s in asked} == of_first
  for stated_in, statements in second.statements.items():
    assert statements
    for statement in statements:
      assert (statement.fact in stated) == (stated_in == "both")
      assert statement.answer == small_world.facts[statement.fact].value
      template = statement.text.replace("[MASK]", "{o}")
      assert template.replace(statement.subject, "{s}") not in templates


def test_the_tagger_finds_the_names_of_the_second_language(small_world, second):
  for document in second.documents[:100]:
    said = document.text(small_world.facts).encode()
    found = {
      said[start:limit].decode()
      for start, limit, _ in names.tag(said.decode(), "")
    }
    facts = [small_world.facts[s.fact] for s in document.sentences]
    assert found == {name for f in facts for name in (f.subject, f.value)}
