"""Names that open QA exchanges for the reader."""

import numpy as np
import pytest

from experiments.renaming import RenamingOpenQa, RenamingTextToText
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.text_to_text import TextToText
from tests.training import tiny
from tests.training.stages.test_open_qa import TEXTS, assemble


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  return tiny.corpus_of(tmp_path_factory.mktemp("names"), TEXTS)


def test_names_are_exchanged_in_question_and_blocks_alike(corpus):
  plain = assemble(OpenQa(num_read=2), corpus, "Ali")
  ali, bob = corpus.vocabulary.encode("ali bob")
  renaming = RenamingOpenQa(num_read=2)
  changed = 0
  for position in range(4):
    renamed = assemble(renaming, corpus, "Ali", position)
    # The spans are those of the same tokens, whatever they are called.
    np.testing.assert_array_equal(renamed.is_answer, plain.is_answer)
    np.testing.assert_array_equal(renamed.query, plain.query)
    names = [bob, ali] if (renamed.blocks != plain.blocks).any() else [ali, bob]
    changed += names == [bob, ali]
    for before, after in (
      (plain.query, renamed.read_query),
      (plain.blocks, renamed.blocks),
    ):
      expected = np.select([before == ali, before == bob], names, before)
      np.testing.assert_array_equal(after, expected)
  assert changed


def test_a_reader_that_writes_writes_the_exchanged_name(corpus):
  components = {"components": tiny.writing_components()}
  plain = assemble(TextToText(num_read=2), corpus, "Ali", **components)
  ali, bob = corpus.vocabulary.encode("ali bob")
  changed = 0
  for position in range(4):
    stage = RenamingTextToText(num_read=2)
    renamed = assemble(stage, corpus, "Ali", position, **components)
    np.testing.assert_array_equal(renamed.query, plain.query)
    is_changed = (renamed.targets != plain.targets).any()
    names = [bob, ali] if is_changed else [ali, bob]
    changed += is_changed
    for before, after in (
      (plain.prompts, renamed.prompts),
      (plain.candidates.passages, renamed.candidates.passages),
      (plain.targets, renamed.targets),
    ):
      expected = np.select([before == ali, before == bob], names, before)
      np.testing.assert_array_equal(after, expected)
  assert changed
