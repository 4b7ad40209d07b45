"""What counts as agreement, by hand."""

import json
import unicodedata

import numpy as np
import pytest

from benchmarks.agreement import comparison, tokens
from realm_jax.text.wordpieces import WordpieceVocabulary


def test_values_within_and_beyond_the_limit():
  ours = np.array([1.0, 2.0])
  row = comparison.differences("x", ours, np.array([1.0, 2.00009]))
  assert row.passed
  assert row.value == pytest.approx(9e-5)
  assert not comparison.differences("x", ours, np.array([1.0, 2.0002])).passed
  assert not comparison.differences("x", ours, ours * np.nan).passed
  assert comparison.relative("loss", 2.00001, 2.0).passed
  assert not comparison.relative("loss", 2.0001, 2.0).passed
  row = comparison.unequal("spans", np.array([1, 2, 3]), np.array([1, 5, 4]))
  assert (row.value, row.passed) == (2, False)


def test_rows_are_json():
  values = np.ones(3, np.float32)
  for row in (
    comparison.differences("x", values, values),
    comparison.relative("x", values[0], values[1]),
    comparison.unequal("x", values, values),
    comparison.gradient_cosines("x", {"a": values}, {"a": values}),
  ):
    written = json.loads(json.dumps(comparison.as_json(row)))
    assert written["passed"] is True
    assert written["what"] == "x"


def test_values_of_other_shapes_do_not_compare():
  with pytest.raises(ValueError, match=r"logits: shapes \(2,\) and \(1, 2\)"):
    comparison.differences("logits", np.zeros(2), np.zeros((1, 2)))


def test_the_worst_cosine_is_told():
  theirs = {"a": np.array([1.0, 0.0]), "b": np.array([[0.0, 2.0]])}
  ours = {"a": np.array([1.0, 0.0]), "b": np.array([[1.2, 1.6]])}
  row = comparison.gradient_cosines("model", ours, theirs)
  assert row.value == pytest.approx(0.8)
  assert not row.passed
  assert row.note == "the worst of 2 parameters: b"


def test_a_gradient_of_another_length():
  theirs = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 2.0])}
  ours = {**theirs, "b": np.array([0.0, 3.0])}
  row = comparison.gradient_cosines("model", ours, theirs)
  assert not row.passed
  assert row.note == "b: 1.5000 times as long"


def test_a_gradient_of_rounding_alone():
  theirs = {"a": np.array([1.0, 0.0]), "key/bias": np.array([1e-9, 0.0])}
  ours = {"a": np.array([1.0, 0.0]), "key/bias": np.array([0.0, 1e-9])}
  assert not comparison.gradient_cosines("model", ours, theirs).passed
  row = comparison.gradient_cosines(
    "model", ours, theirs, without=("key/bias",)
  )
  assert row.passed
  assert row.note.endswith("; 1 have none in either")
  ours["key/bias"] = np.array([0.0, 1e-3])
  row = comparison.gradient_cosines(
    "model", ours, theirs, without=("key/bias",)
  )
  assert not row.passed
  assert row.note == "key/bias: there should be none"


def test_a_gradient_of_what_took_no_part():
  theirs = {"a": np.ones(1)}
  zero = {"a": np.ones(1), "b": np.zeros(1)}
  assert comparison.gradient_cosines("model", zero, theirs).passed
  row = comparison.gradient_cosines(
    "model", {**theirs, "b": np.ones(1)}, theirs
  )
  assert not row.passed
  assert row.note == "b: the other system has none"


PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] half 1 ##⁄ ##2 ½ cos ##σ ##ς bass"
PIECES = [*PIECES.split(), "cafe"]


def _ids(text):
  """BERT's own folding, and the longest known pieces: a second tokenizer."""
  folded = unicodedata.normalize("NFD", text.lower())
  folded = "".join(c for c in folded if unicodedata.category(c) != "Mn")
  ids = []
  for word in folded.split():
    start, found = 0, []
    while start < len(word):
      limits = range(len(word), start, -1)
      pieces = (("##" if start else "") + word[start:end] for end in limits)
      known = next((p for p in pieces if p in PIECES), None)
      if known is None:
        found = [PIECES.index("[UNK]")]
        break
      found.append(PIECES.index(known))
      start += len(known.removeprefix("##"))
    ids += found
  return ids


def test_differences_of_tokens_are_explained_and_counted(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
  vocabulary = WordpieceVocabulary(tmp_path / "vocab.txt")
  texts = {
    "plain": ["Half Café", ""],
    "folded": ["half ½", "COSς", "½ cosς bass"],
  }

  def tokenize(some):
    right = [_ids(text) for text in some]
    # A tokenizer that loses a word is no matter of folding.
    return {"right": right, "wrong": [ids[:1] for ids in right]}

  rows = {row.what: row for row in tokens.compare(texts, vocabulary, tokenize)}
  assert rows["tokens of plain, right"].passed
  folded = rows["tokens of folded, right"]
  assert folded.passed
  assert "1 by compatibility characters, such as ½" in folded.note
  assert "1 by letters that case folding replaces" in folded.note
  assert "1 by both of these" in folded.note
  assert rows["tokens of plain, wrong"].value == 1
  assert rows["tokens of folded, wrong"].value == 3
