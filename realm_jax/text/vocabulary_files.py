"""Vocabularies as files: pieces, and the normalization of text.

vocab.txt              a piece on each line; line n has id n - 1
vocab.json             its `Normalization`, such as {"normalizer": "bert",
                       "lowercase": true, "strip_accents": true}

Models of Hugging Face have other files:

tokenizer_config.json  normalization of text, and added pieces
tokenizer.json         the same with all pieces, if there is no vocab.txt
added_tokens.json      added pieces

Byte-level BPE, as in ModernBERT, has only a tokenizer.json.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.settings import accepts
from realm_jax.storage.json_files import read_object, write_json
from realm_jax.text.byte_pairs import BytePairVocabulary
from realm_jax.text.normalization import Normalization, Normalizer
from realm_jax.text.vocabulary import (
  PAD,
  SPECIAL_PIECES,
  BertVocabulary,
  VocabularyError,
)
from realm_jax.text.wordpieces import (
  CONTINUATION,
  WordpieceVocabulary,
  guess_normalization,
)

VOCABULARY_FILE = "vocab.txt"
TOKENIZER_CONFIG = "tokenizer_config.json"
_NORMALIZATION, _FAST, _ADDED = (
  "vocab.json",
  "tokenizer.json",
  "added_tokens.json",
)


def read_vocabulary(
  path: epath.PathLike,
  *,
  cased: bool | None = None,
  normalizer: Normalizer | None = None,
) -> BertVocabulary:
  """Reads a vocabulary file, or a directory that has one.

  Files in the same folder determine the normalization of text. Without them,
  pieces with capitals are assumed to be for cased text, with a warning.

  Args:
    path: vocab.txt under any name, tokenizer.json, or a directory with
      either.
    cased: Whether text keeps its capitals; None follows the files.
    normalizer: Normalizer of lower-case text, unless vocab.json has one; None
      is `bert` if there are Hugging Face's files, and else `tensorflow_text`.

  Raises:
    VocabularyError: There is no vocabulary, it is not one of BERT's kind, or
      the files contradict each other or `cased`.
  """
  file = epath.Path(path)
  folder = file if file.is_dir() else file.parent
  if file.is_dir():
    file /= VOCABULARY_FILE
  config, fast = (_read(folder / name) for name in (TOKENIZER_CONFIG, _FAST))
  if file.name == _FAST or (file != epath.Path(path) and not file.exists()):
    file = folder / (_FAST if fast else VOCABULARY_FILE)
  if file.name == _FAST:
    model = fast.get("model")
    if isinstance(model, dict) and model.get("type") == "BPE":
      return _byte_pairs(file, cased)
    by_id = _fast_pieces(file, fast)
  else:
    by_id = dict(enumerate(_lines(file)))
  for number, piece in _added_pieces(folder, config).items():
    if by_id.setdefault(number, piece) != piece:
      raise VocabularyError(
        f"{folder} adds {piece!r} with the id {number}, which is "
        f"{by_id[number]!r} in {file}; are both files of one model?"
      )
  # Ids without a piece are rows of the model that no text has.
  pieces = [
    by_id.get(number, _placeholder(number))
    for number in range(max(by_id, default=-1) + 1)
  ]
  _check(pieces, source=str(file))
  normalization = _read_normalization(folder)
  if normalization is None:
    normalization = _of_hugging_face(folder, config, fast, normalizer)
  if normalization is None:
    guess = guess_normalization(pieces).cased if cased is None else cased
    normalization = Normalization.of(
      cased=guess, normalizer=normalizer or Normalization().normalizer
    )
    if cased is None:
      logging.warning(
        "No file beside %s says how text is normalized. Its pieces have %s, so "
        "text is %s. --cased and --nocased of build_corpus say it",
        file,
        "capitals" if guess else "no capitals",
        "left as it is" if guess else "put in lower case, without accents",
      )
  if cased not in (None, normalization.cased):
    raise VocabularyError(
      f"--{'cased' if cased else 'nocased'}: the files of {folder} say that "
      f"{file.name} is {'cased' if normalization.cased else 'uncased'}; leave "
      f"the flag out, or change {_NORMALIZATION} or {TOKENIZER_CONFIG} there"
    )
  return WordpieceVocabulary(pieces, normalization)


def has_vocabulary(directory: epath.PathLike) -> bool:
  """Returns whether a directory has a vocabulary, of either kind."""
  folder = epath.Path(directory)
  return any((folder / name).exists() for name in (VOCABULARY_FILE, _FAST))


def write_vocabulary(
  directory: epath.PathLike, vocabulary: BertVocabulary
) -> None:
  """Writes vocab.json and then vocab.txt, or tokenizer.json for byte pairs."""
  folder = epath.Path(directory)
  if isinstance(vocabulary, BytePairVocabulary):
    (folder / _FAST).write_text(vocabulary.tokenizer, encoding="utf-8")
    return
  assert isinstance(vocabulary, WordpieceVocabulary)
  normalization = dataclasses.asdict(vocabulary.normalization)
  write_json(folder / _NORMALIZATION, normalization)
  lines = "\n".join(vocabulary.pieces) + "\n"
  (folder / VOCABULARY_FILE).write_bytes(lines.encode("utf-8"))


def _byte_pairs(file: epath.Path, cased: bool | None) -> BertVocabulary:
  if cased is False:
    raise VocabularyError(
      f"--nocased: {file} keeps capitals; leave the flag out"
    )
  try:
    return BytePairVocabulary(file.read_text(encoding="utf-8"))
  except VocabularyError as error:
    raise VocabularyError(f"{file}: {error}") from error


def _lines(path: epath.Path) -> list[str]:
  if not path.is_file():
    raise VocabularyError(
      f"no vocabulary at {path}; give BERT's vocab.txt, or train one with "
      "build_corpus --vocab=train:SIZE"
    )
  try:
    # Without the byte order mark that some editors write.
    text = path.read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise VocabularyError(
      f"{path} is not UTF-8 (byte {error.start}); convert it to UTF-8"
    ) from error
  # Not splitlines(): a piece may be one of Unicode's other line ends.
  return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _placeholder(number: int) -> str:
  return f"[unused_row_{number}]"


def _check(pieces: list[str], *, source: str) -> None:
  """Raises a `VocabularyError` if `pieces` are not a BERT vocabulary."""
  if missing := [piece for piece in SPECIAL_PIECES if piece not in pieces]:
    raise VocabularyError(
      f"{source} has no {', '.join(missing)}; a BERT vocabulary lists "
      f"{' '.join(SPECIAL_PIECES)}, one piece a line"
    )
  if pieces[0] != PAD:
    raise VocabularyError(
      f"{source} has {pieces[0]!r} on its first line; {PAD} must be there, "
      "because id 0 is padding everywhere"
    )
  number_of: dict[str, int] = {}
  for number, piece in enumerate(pieces):
    # In BERT's tokenizers, the last of a repeated piece's ids counts.
    if (fault := number_of.get(piece, None if piece else number)) is not None:
      again = f" and again on line {number + 1}" if piece else ""
      raise VocabularyError(
        f"{source} has {piece!r} on line {fault + 1}{again}; write "
        f"{_placeholder(fault)} on line {fault + 1} instead. (Don't remove the "
        "line: each piece's id is its line, and the ids of all later pieces "
        "would change.)"
      )
    number_of[piece] = number


def _read(path: epath.Path) -> dict[str, Any]:
  """Reads a JSON object; empty if there is no such file."""
  if not path.exists():
    return {}
  try:
    return read_object(path.read_bytes())
  except (OSError, RealmError) as error:
    raise VocabularyError(f"{path} cannot be read: {error}") from error


def _fast_pieces(path: epath.Path, fast: Mapping[str, Any]) -> dict[int, str]:
  """Returns the pieces of a `tokenizer.json` by their ids."""
  model = fast.get("model")
  model = model if isinstance(model, dict) else {}
  prefix = model.get("continuing_subword_prefix", CONTINUATION)
  if model.get("type") != "WordPiece" or prefix != CONTINUATION:
    raise VocabularyError(
      f"{path} is a {model.get('type')} tokenizer with the prefix "
      f"{prefix!r}; want BERT's WordPiece with {CONTINUATION!r}"
    )
  added = fast.get("added_tokens") or ()
  if not accepts(list[dict[str, Any]] | tuple[()], added):
    raise VocabularyError(f"{path} has added_tokens of another form")
  ids = {token.get("content"): token.get("id") for token in added}
  return _by_id(path, {**(model.get("vocab") or {}), **ids})


def _added_pieces(
  folder: epath.Path, config: Mapping[str, Any]
) -> dict[int, str]:
  """Returns the pieces that Hugging Face's files add, by their ids."""
  ids = _read(folder / _ADDED)
  decoder = config.get("added_tokens_decoder") or {}
  if not accepts(dict[str, dict[str, Any]], decoder) or not all(
    number.isdecimal() for number in decoder
  ):
    raise VocabularyError(
      f"{folder / TOKENIZER_CONFIG} has an added_tokens_decoder of another form"
    )
  ids |= {token.get("content"): int(n) for n, token in decoder.items()}
  return _by_id(folder, ids)


def _by_id(path: epath.Path, ids: Mapping[Any, Any]) -> dict[int, str]:
  if not accepts(dict[str, int], ids) or any(n < 0 for n in ids.values()):
    raise VocabularyError(
      f"{path} has pieces without an id, a number from 0; copy its files again"
    )
  return {number: piece for piece, number in ids.items()}


def _read_normalization(folder: epath.Path) -> Normalization | None:
  """Reads vocab.json, if it is there."""
  path = folder / _NORMALIZATION
  try:
    return Normalization(**_read(path)) if path.exists() else None
  except (TypeError, RealmError) as error:
    raise VocabularyError(
      f"{path} cannot be used ({error}); want an object such as "
      f"{json.dumps(dataclasses.asdict(Normalization()))}"
    ) from error


def _of_hugging_face(
  folder: epath.Path,
  config: Mapping[str, Any],
  fast: Mapping[str, Any],
  normalizer: Normalizer | None,
) -> Normalization | None:
  """Returns the normalization of a Hugging Face tokenizer, if in its files.

  (`do_lower_case` in sentence-transformers' own file only means that text is
  lower-cased before.)
  """
  of_fast = fast.get("normalizer")
  of_fast = of_fast if isinstance(of_fast, dict) else {}

  def said(name: str, in_fast: str) -> Any:
    value = config.get(name)
    return of_fast.get(in_fast) if value is None else value

  lowercase = said("do_lower_case", "lowercase")
  if lowercase is None:
    return None
  strip_accents = said("strip_accents", "strip_accents")
  if strip_accents is None:
    strip_accents = lowercase
  splits = said("tokenize_chinese_chars", "handle_chinese_chars")
  if not accepts(list[bool], [lowercase, strip_accents]) or splits is False:
    raise VocabularyError(
      f"the tokenizer of {folder} has do_lower_case={lowercase}, "
      f"strip_accents={strip_accents} and tokenize_chinese_chars={splits}; "
      "want true or false, and ideographs as words, as in BERT"
    )
  if normalizer == "tensorflow_text" and lowercase:
    return Normalization()
  return Normalization("bert", lowercase, strip_accents)
