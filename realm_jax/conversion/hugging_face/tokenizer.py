"""The vocabulary of a Hugging Face directory, if it is uncased wordpieces."""

from pathlib import Path
from typing import Any

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.directory import read_json
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, require_uncased
from realm_jax.text import wordpieces

CONFIG = "tokenizer_config.json"
_FAST = "tokenizer.json"


def read_vocabulary(directory: Path) -> tuple[str, ...]:
  """The pieces in the order of their ids, from vocab.txt or tokenizer.json.

  Raises:
    ConversionError: there is neither, or its tokens would not be ours: cased,
      accents kept, or no wordpieces.
    VocabularyError: the pieces cannot serve here, as where [PAD] is not 0.
  """
  fast = directory / _FAST
  described = read_json(fast) if fast.exists() else {}
  normalizer = described.get("normalizer")
  says = _require_uncased(
    directory, normalizer if isinstance(normalizer, dict) else {}
  )
  if (directory / VOCABULARY_FILE).exists():
    source = directory / VOCABULARY_FILE
    pieces = wordpieces.read_pieces(source)
  elif described:
    source = fast
    pieces = _fast_pieces(described, fast)
  else:
    raise ConversionError(
      f"{directory} has no {VOCABULARY_FILE} and no {_FAST}; copy the "
      "vocabulary of the weights there"
    )
  if not says:
    require_uncased(pieces, where=str(source))
  return pieces


def _fast_pieces(described: dict[str, Any], path: Path) -> tuple[str, ...]:
  model = described.get("model")
  model = model if isinstance(model, dict) else {}
  prefix = model.get("continuing_subword_prefix", wordpieces.CONTINUATION)
  if model.get("type") != "WordPiece" or prefix != wordpieces.CONTINUATION:
    raise ConversionError(
      f"{path} is a {model.get('type')} tokenizer with the prefix {prefix!r}; "
      f"want BERT's WordPiece with {wordpieces.CONTINUATION!r}"
    )
  ids = _ids(model.get("vocab"), described.get("added_tokens") or (), path)
  pieces = tuple(sorted(ids, key=ids.__getitem__))
  if sorted(ids.values()) != list(range(len(ids))):
    raise ConversionError(
      f"{path} has {len(ids)} pieces with ids up to {max(ids.values())}, so "
      "some ids stand for none or for two; want one piece for each id"
    )
  wordpieces.check_pieces(pieces, source=str(path))
  return pieces


def _ids(vocab: Any, added: Any, path: Path) -> dict[str, int]:
  """The pieces' ids, those of added tokens too."""
  try:
    ids = dict(vocab) | {token["content"]: token["id"] for token in added}
  except (TypeError, KeyError, ValueError) as error:
    raise ConversionError(
      f"{path} is damaged ({error!r}); want a model with its vocab, pieces "
      "with their ids, and added_tokens with content and id: copy it again"
    ) from error
  for piece, index in ids.items():
    if not isinstance(piece, str) or type(index) is not int:
      raise ConversionError(
        f"{path} gives {piece!r} the id {index!r}; want a number for each "
        "piece: copy it again"
      )
  return ids


def _require_uncased(directory: Path, normalizer: dict[str, Any]) -> bool:
  """Refuses what our tokens, lower-cased and without accents, would not be.

  Returns whether any file says that the model is uncased.

  tokenizer_config.json decides where it says something. (The `do_lower_case`
  of sentence-transformers' own file does not: it says what is done before.)
  """
  path = directory / CONFIG
  config = read_json(path) if path.exists() else {}

  def setting(name: str, in_normalizer: str, usual: Any) -> Any:
    if config.get(name) is not None:
      return config[name]
    found = normalizer.get(in_normalizer)
    return usual if found is None else found

  said = setting("do_lower_case", "lowercase", None)
  lower = True if said is None else said
  # Where nothing is said, accents go with the capitals.
  strips = setting("strip_accents", "strip_accents", lower)
  splits = setting("tokenize_chinese_chars", "handle_chinese_chars", True)
  for good, found in (
    (lower, "keeps capitals (do_lower_case=false): it is a cased model"),
    (strips, "keeps accents (strip_accents=false)"),
    (splits, "does not split Chinese characters"),
  ):
    if not good:
      raise ConversionError(
        f"the tokenizer of {directory} {found}; wordpieces here are uncased "
        "BERT's, and would give this model tokens that it never saw. Take an "
        "uncased model"
      )
  return said is not None


def tokenizer_config(*, max_length: int) -> dict[str, Any]:
  """The `tokenizer_config.json` of our wordpieces."""
  return {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "model_max_length": max_length,
    "pad_token": wordpieces.PAD,
    "unk_token": wordpieces.UNK,
    "cls_token": wordpieces.CLS,
    "sep_token": wordpieces.SEP,
    "mask_token": wordpieces.MASK,
  }
