"""The vocabulary of a Hugging Face directory, which must be uncased."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_jax.conversion.config_file import ConfigFile, read_optional
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, require_uncased
from realm_jax.files.json_file import JsonValue
from realm_jax.text import wordpieces

CONFIG = "tokenizer_config.json"
_FAST = "tokenizer.json"


def read_vocabulary(directory: Path) -> tuple[str, ...]:
  """Reads the pieces in the order of their ids.

  They are in vocab.txt or else in tokenizer.json.
  """
  fast = read_optional(directory / _FAST)
  is_said = _require_uncased(directory, _object(fast.get("normalizer")))
  source = directory / VOCABULARY_FILE
  if source.exists():
    pieces = wordpieces.read_pieces(source)
  elif fast.entries:
    source = directory / _FAST
    pieces = _fast_pieces(fast)
  else:
    raise ConversionError(
      f"{directory} has no {VOCABULARY_FILE} and no {_FAST}; copy the "
      "vocabulary of the weights there"
    )
  if not is_said:
    require_uncased(pieces, where=str(source))
  return pieces


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
  return value if isinstance(value, Mapping) else {}


def _fast_pieces(fast: ConfigFile) -> tuple[str, ...]:
  where = fast.where
  model = _object(fast.get("model"))
  prefix = model.get("continuing_subword_prefix", wordpieces.CONTINUATION)
  if model.get("type") != "WordPiece" or prefix != wordpieces.CONTINUATION:
    raise ConversionError(
      f"{where} is a {model.get('type')} tokenizer with the prefix {prefix!r}; "
      f"want BERT's WordPiece with {wordpieces.CONTINUATION!r}"
    )
  vocab: Any = model.get("vocab")
  added: Any = fast.get("added_tokens") or ()
  try:
    ids = dict(vocab) | {token["content"]: token["id"] for token in added}
  except (TypeError, KeyError, ValueError) as error:
    raise ConversionError(
      f"{where} is damaged ({error!r}); want a model with its vocab, pieces "
      "with their ids, and added_tokens with content and id: copy it again"
    ) from error
  for piece, index in ids.items():
    if not isinstance(piece, str) or type(index) is not int:
      raise ConversionError(
        f"{where} gives {piece!r} the id {index!r}; want a number for each "
        "piece: copy it again"
      )
  if sorted(ids.values()) != list(range(len(ids))):
    raise ConversionError(
      f"{where} has {len(ids)} pieces with ids up to {max(ids.values())}, so "
      "some ids have no piece or two; want one piece for each id"
    )
  pieces = tuple(sorted(ids, key=ids.__getitem__))
  wordpieces.check_pieces(pieces, source=where)
  return pieces


def _require_uncased(
  directory: Path, normalizer: Mapping[str, JsonValue]
) -> bool:
  """Checks that the tokenizer lower-cases and strips accents, as ours does.

  tokenizer_config.json goes before the normalizer of tokenizer.json. (The
  `do_lower_case` of sentence-transformers' own file only says whether the text
  is lower-cased before.) Returns whether any file says that it is uncased.
  """
  config = read_optional(directory / CONFIG)

  def setting(name: str, in_normalizer: str, default: JsonValue) -> JsonValue:
    found = (config.get(name), normalizer.get(in_normalizer), default)
    return next((value for value in found if value is not None), None)

  said = setting("do_lower_case", "lowercase", None)
  lower = True if said is None else said
  # By default, accents are stripped where letters are lower-cased.
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
        "BERT's, and would give this model tokens that it never saw. Use an "
        "uncased model"
      )
  return said is not None


def tokenizer_config(kind: str, max_length: int) -> dict[str, JsonValue]:
  """Returns the `tokenizer_config.json` of our wordpieces, for a class."""
  return {
    "tokenizer_class": kind,
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
