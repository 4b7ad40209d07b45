"""A directory's vocabulary, where it is uncased wordpieces."""

import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.tokenizer import read_vocabulary
from realm_jax.text.wordpieces import VocabularyError
from tests.conversion.hugging_face import bert_files as files

_PIECES = files.pieces()
_UNCASED = {"type": "BertNormalizer", "lowercase": True}


def _write(directory, pieces=_PIECES):
  lines = "\n".join(pieces) + "\n"
  (directory / "vocab.txt").write_text(lines, encoding="utf-8")


def _fast(**changes):
  """A tokenizer.json."""
  model = {
    "type": "WordPiece",
    "continuing_subword_prefix": "##",
    # In another order than that of the ids.
    "vocab": {piece: i for i, piece in reversed(list(enumerate(_PIECES)))},
  }
  return {
    "normalizer": _UNCASED,
    "added_tokens": [{"id": 0, "content": "[PAD]"}],
    "model": model,
    **changes,
  }


def test_the_vocabulary_may_come_from_tokenizer_json(tmp_path):
  files.write_json(tmp_path / "tokenizer.json", _fast())
  assert read_vocabulary(tmp_path) == tuple(_PIECES)


@pytest.mark.parametrize(
  "changes",
  [
    {"model": None},
    {"model": []},
    {"model": {"type": "WordPiece"}},
    {"model": {"type": "WordPiece", "vocab": {"a": "1"}}},
    {"added_tokens": [{"content": "[PAD]"}]},
    {"added_tokens": ["[PAD]"]},
    {"added_tokens": [{"id": 0, "content": None}]},
    {"added_tokens": 5},
    {"added_tokens": [{"id": 999, "content": "[X]"}]},
  ],
  ids=str,
)
def test_a_damaged_tokenizer_json_is_refused(tmp_path, changes):
  files.write_json(tmp_path / "tokenizer.json", _fast(**changes))
  with pytest.raises(ConversionError, match=r"tokenizer\.json .*want"):
    read_vocabulary(tmp_path)


@pytest.mark.parametrize(
  ("file", "content", "said"),
  [
    ("tokenizer_config.json", {"do_lower_case": False}, "cased"),
    (
      "tokenizer.json",
      {"normalizer": {"type": "BertNormalizer", "lowercase": False}},
      "cased",
    ),
    ("tokenizer_config.json", {"strip_accents": False}, "accents"),
  ],
)
def test_a_cased_model_is_refused(tmp_path, file, content, said):
  _write(tmp_path)
  files.write_json(tmp_path / file, content)
  with pytest.raises(ConversionError, match=said):
    read_vocabulary(tmp_path)


def test_a_vocabulary_whose_padding_is_not_0_is_refused(tmp_path):
  _write(tmp_path, [_PIECES[1], _PIECES[0], *_PIECES[2:]])
  with pytest.raises(VocabularyError, match=r"\[PAD\] must be there"):
    read_vocabulary(tmp_path)
