"""SentencePieces, as T5 reads and writes them.

A model file has pieces with their scores, and says how text is normalized.
T5's has padding as piece 0, the end of a text as 1 and unknown characters as 2.
Its sentinels are the last ids, counted down from the top: `<extra_id_0>` is
32,099 after 32,000 pieces. They are in no file of T5, so that a model without
them gets 100, as by seqio's `extra_ids`.
"""

import functools
import hashlib
import io
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from realm_jax.storage.paths import read_bytes
from realm_jax.text.vocabulary import (
  known_sentinels,
  sentinel,
  split_at_sentinels,
)
from realm_jax.text.wordpieces import VocabularyError

MODEL_FILE = "spiece.model"
# Characters of a text that pieces are learned from in one go.
_CHARACTERS_TO_LEARN = 4_000
_NUM_SENTINELS = 100
# How a model file writes a space before a word.
_SPACE = "▁"
# The library may crash where two threads load models.
_loading = threading.Lock()


class SentencePieceVocabulary:
  """The pieces of a SentencePiece model, and its sentinels.

  Texts give the ids that seqio and transformers give, but a sentinel is also
  one within a word: T5's tokens of `(<extra_id_0>)` are those of `(` and `)`
  with the sentinel between them.

  Args:
    model: Contents of a model file.

  Raises:
    VocabularyError: They are no model, or its padding has another id than 0.
  """

  def __init__(self, model: bytes):
    self.model, self._pieces = model, _loaded(model)
    # What follows a sentinel goes on with its word, unless a space is there.
    self._rest_of_word = _loaded(model)
    self._rest_of_word.OverrideNormalizerSpec(add_dummy_prefix=False)
    self.pad_id, self.eos_id = self._pieces.pad_id(), self._pieces.eos_id()
    if self.pad_id != 0 or self.eos_id < 0:
      raise VocabularyError(
        f"the SentencePiece model has {self.pad_id} as the id of padding and "
        f"{self.eos_id} as that of the end (-1: it has none); want a model as "
        "of T5, with 0 and 1"
      )
    self.size = self._pieces.GetPieceSize()
    self.sentinels: Sequence[int] = known_sentinels(self._id_of)
    if not self.sentinels:
      self.size += _NUM_SENTINELS
      self.sentinels = range(self.size)[: -_NUM_SENTINELS - 1 : -1]
    self._numbers = {id: number for number, id in enumerate(self.sentinels)}

  def __reduce__(self) -> tuple[Any, ...]:
    return SentencePieceVocabulary, (self.model,)

  @functools.cached_property
  def digest(self) -> str:
    """The SHA-256 of the model file."""
    return hashlib.sha256(self.model).hexdigest()

  def _id_of(self, piece: str) -> int | None:
    unknown = self._pieces.unk_id()
    ids = map(self._pieces.PieceToId, (piece, _SPACE + piece))
    return next((id for id in ids if id != unknown), None)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text and its sentinels, without an end."""
    ids = list[int]()
    for part in split_at_sentinels(text, len(self.sentinels)):
      if isinstance(part, int):
        ids.append(self.sentinels[part])
      else:
        goes_on = ids and part[:1].strip()
        pieces = self._rest_of_word if goes_on else self._pieces
        ids += pieces.EncodeAsIds(part)
    return ids

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids before the first end, without padding."""
    unknown, most = self._pieces.unk_id(), self._pieces.GetPieceSize()
    before_end = itertools.takewhile(lambda id: id != self.eos_id, ids)
    texts = list[str]()
    for number, run in itertools.groupby(before_end, self._numbers.get):
      if number is None:
        known = [int(id) if id < most else unknown for id in run]
        texts.append(self._pieces.DecodeIds(known))
      else:
        texts += [sentinel(number) for _ in run]
    return " ".join(filter(None, texts))


def read_sentencepieces(path: epath.PathLike) -> SentencePieceVocabulary:
  """Reads a model file, or that of a directory, which is `spiece.model`.

  Raises:
    VocabularyError: There is no file, or it is no model that can be used.
  """
  file = epath.Path(path)
  if file.is_dir():
    file /= MODEL_FILE
  try:
    return SentencePieceVocabulary(read_bytes(file))
  except FileNotFoundError as error:
    raise VocabularyError(
      f"no SentencePiece model at {file}; give the {MODEL_FILE} of a T5, or "
      "train one with build_corpus --view=NAME:train:SIZE"
    ) from error
  except VocabularyError as error:
    raise VocabularyError(f"{file}: {error}") from error


def train_sentencepieces(
  texts: Iterable[str], size: int
) -> SentencePieceVocabulary:
  """Learns a model of at most `size` pieces, which has T5's ids.

  The same texts give the same model. Memory grows with the texts, to about 20
  bytes for each character.

  Raises:
    VocabularyError: `size` is too small for the characters of the texts.
  """
  model = io.BytesIO()
  try:
    SentencePieceTrainer.Train(
      sentence_iterator=_parts(texts),
      model_writer=model,
      vocab_size=size,
      # Few texts have fewer pieces.
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      character_coverage=0.99995,
      max_sentence_length=4 * _CHARACTERS_TO_LEARN,
      # It adds up in this number of parts, on any machine.
      num_threads=16,
      minloglevel=2,
    )
  except RuntimeError as error:
    raise VocabularyError(
      f"no SentencePiece model of {size} pieces can be learned from these "
      f"texts ({error}); give a larger size, or more text"
    ) from error
  return SentencePieceVocabulary(model.getvalue())


def _parts(texts: Iterable[str]) -> Iterator[str]:
  """Yields texts in parts that the trainer does not skip for their length."""
  for text in texts:
    for start in range(0, len(text), _CHARACTERS_TO_LEARN):
      yield text[start : start + _CHARACTERS_TO_LEARN]


def _loaded(model: bytes) -> SentencePieceProcessor:
  pieces = SentencePieceProcessor()
  try:
    with _loading:
      pieces.LoadFromSerializedProto(model)
  except RuntimeError as error:
    raise VocabularyError(
      "this is no SentencePiece model; give the spiece.model of a T5 (a "
      "vocab.txt has wordpieces, which build_corpus takes as --vocab)"
    ) from error
  return pieces
