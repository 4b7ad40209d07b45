"""The vocabulary of a Hugging Face directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from realm_jax.conversion.config_file import ConfigFile, read_optional
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.vocabulary import (
  VOCABULARY_FILE,
  pieces_with_capitals,
  require_uncased,
)
from realm_jax.files.json_file import JsonValue
from realm_jax.text import wordpieces

CONFIG = "tokenizer_config.json"
_FAST = "tokenizer.json"


def read_vocabulary(directory: Path) -> tuple[str, ...]:
  """Reads the pieces of an uncased model in the order of their ids.

  They are in vocab.txt or else in tokenizer.json.
  """
  settings = _Settings.read(directory)
  settings.require_uncased()
  pieces, source = _read_pieces(directory)
  if settings.lower_case is None:
    require_uncased(pieces, where=source)
  return pieces


def read_cased_or_uncased(
  directory: Path,
) -> wordpieces.WordpieceVocabulary:
  """Reads the vocabulary of a model that may be cased.

  Where no file says whether it is, pieces with capitals do.
  """
  settings = _Settings.read(directory)
  pieces, _ = _read_pieces(directory)
  cased = settings.lower_case is False
  if settings.lower_case is None:
    cased = bool(pieces_with_capitals(pieces))
  settings.require_wordpieces(cased=cased)
  return wordpieces.vocabulary_of(pieces, cased=cased)


def _read_pieces(directory: Path) -> tuple[tuple[str, ...], Path]:
  """Returns the pieces, and the file that they are from."""
  source, fast = directory / VOCABULARY_FILE, directory / _FAST
  if source.exists():
    return wordpieces.read_pieces(source), source
  if fast.exists():
    return _fast_pieces(read_optional(fast)), fast
  raise ConversionError(
    f"{directory} has no {VOCABULARY_FILE} and no {_FAST}; copy the "
    "vocabulary of the weights there"
  )


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


class _Settings(NamedTuple):
  """How a tokenizer normalizes text; None is what no file says.

  tokenizer_config.json goes before the normalizer of tokenizer.json. (The
  `do_lower_case` of sentence-transformers' own file only says whether the text
  is lower-cased before.)
  """

  directory: Path
  lower_case: JsonValue
  strip_accents: JsonValue
  split_chinese: JsonValue

  @classmethod
  def read(cls, directory: Path) -> "_Settings":
    """Reads the files of a directory, each of which may be missing."""
    config = read_optional(directory / CONFIG)
    normalizer = _object(read_optional(directory / _FAST).get("normalizer"))

    def setting(name: str, in_normalizer: str) -> JsonValue:
      said = config.get(name)
      return normalizer.get(in_normalizer) if said is None else said

    return cls(
      directory,
      setting("do_lower_case", "lowercase"),
      setting("strip_accents", "strip_accents"),
      setting("tokenize_chinese_chars", "handle_chinese_chars"),
    )

  def require_uncased(self) -> None:
    """Raises `ConversionError` if text keeps its capitals."""
    if self.lower_case not in (None, True):
      raise self._error(
        "keeps capitals (do_lower_case=false): it is a cased model",
        "uncased BERT's",
        "Use an uncased model",
      )
    self.require_wordpieces(cased=False)

  def require_wordpieces(self, *, cased: bool) -> None:
    """Raises `ConversionError` if our wordpieces differ otherwise."""
    ours = f"{'' if cased else 'un'}cased BERT's"
    advice = f"Use {'a' if cased else 'an un'}cased model of the usual kind"
    # By default, accents are stripped where letters are lower-cased.
    if self.strip_accents not in (None, not cased):
      verb = "strips" if cased else "keeps"
      value = str(self.strip_accents).lower()
      said = f"{verb} accents (strip_accents={value})"
      raise self._error(said, ours, advice)
    if self.split_chinese not in (None, True):
      raise self._error("does not split Chinese characters", ours, advice)

  def _error(self, found: str, ours: str, advice: str) -> ConversionError:
    return ConversionError(
      f"the tokenizer of {self.directory} {found}; wordpieces here are {ours}, "
      f"and would give this model tokens that it never saw. {advice}"
    )


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
