"""SentencePieces, as T5 reads and writes them.

In T5's model file, padding is piece 0, the end of a text is 1, and unknown
characters are 2. Sentinels are not in the file. They are the last ids, counted
down: `<extra_id_0>` is 32,099 after 32,000 pieces, as with seqio's
`extra_ids=100`.
"""

import hashlib
import io
import itertools
import threading
from collections.abc import Iterable
from typing import Any

from etils import epath
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from realm_jax.storage.paths import read_bytes
from realm_jax.text.vocabulary import (
  SENTINEL,
  VocabularyError,
  encode_parts,
  known_sentinels,
)

MODEL_FILE = "spiece.model"
# Number of characters in a part of a text for training.
_PART = 4_000
_NUM_SENTINELS = 100
# Threads that load models at the same time may crash.
_loading = threading.Lock()


class SentencePieceVocabulary:
  """The pieces of a SentencePiece model, and sentinels.

  Texts have the same ids as in seqio and transformers. A sentinel may also be
  within a word: `(<extra_id_0>)` has the tokens of `(` and `)`, with the
  sentinel between them.

  Raises:
    VocabularyError: This is not a model, or the id of padding is not 0.
  """

  def __init__(self, model: bytes):
    self.model, self._pieces = model, _loaded(model)
    self.digest = hashlib.sha256(model).hexdigest()
    # Text after a sentinel continues a word, unless there is a space.
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
    self.sentinels = known_sentinels(self._id_of)
    if not self.sentinels:
      self.size += _NUM_SENTINELS
      self.sentinels = range(self.size)[: -_NUM_SENTINELS - 1 : -1]
    self._numbers = {id: number for number, id in enumerate(self.sentinels)}

  def __reduce__(self) -> tuple[Any, ...]:
    return SentencePieceVocabulary, (self.model,)

  def _id_of(self, piece: str) -> int | None:
    # seqio's sentinels start words.
    ids = map(self._pieces.PieceToId, (piece, f"▁{piece}"))
    return next((id for id in ids if id != self._pieces.unk_id()), None)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text with sentinels, without the end token."""

    def encode(part: str, follows: bool) -> list[int]:
      goes_on = follows and part[:1].strip()
      return (self._rest_of_word if goes_on else self._pieces).EncodeAsIds(part)

    return encode_parts(text, self.sentinels, encode)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids before the first end token, without padding."""
    unknown, most = self._pieces.unk_id(), self._pieces.GetPieceSize()
    before_end = itertools.takewhile(lambda id: id != self.eos_id, ids)
    texts = list[str]()
    for number, run in itertools.groupby(before_end, self._numbers.get):
      if number is None:
        known = [int(id) if id < most else unknown for id in run]
        texts.append(self._pieces.DecodeIds(known))
      else:
        texts += [SENTINEL.format(number) for _ in run]
    return " ".join(filter(None, texts))


def read_sentencepieces(path: epath.PathLike) -> SentencePieceVocabulary:
  """Reads a model file, or the `spiece.model` of a directory.

  Raises:
    VocabularyError: The file is missing, or cannot be used.
  """
  file = epath.Path(path)
  file = file / MODEL_FILE if file.is_dir() else file
  try:
    return SentencePieceVocabulary(read_bytes(file))
  except FileNotFoundError as error:
    raise VocabularyError(
      f"no SentencePiece model at {file}; give the spiece.model of a T5"
    ) from error
  except VocabularyError as error:
    raise VocabularyError(f"{file}: {error}") from error


def train_sentencepieces(
  texts: Iterable[str], size: int
) -> SentencePieceVocabulary:
  """Learns a model of at most `size` pieces, which has T5's ids.

  The same texts give the same model. They take about 20 bytes of memory for
  each character. Raises `VocabularyError` if the size is too small for them.
  """
  # The trainer skips longer ones.
  parts = (t[i : i + _PART] for t in texts for i in range(0, len(t), _PART))
  model = io.BytesIO()
  try:
    SentencePieceTrainer.Train(
      sentence_iterator=parts,
      model_writer=model,
      vocab_size=size,
      # Few texts have fewer pieces.
      hard_vocab_limit=False,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      character_coverage=0.99995,
      max_sentence_length=4 * _PART,
      # It adds up in this number of parts, on any machine.
      num_threads=16,
      minloglevel=2,
    )
  except RuntimeError as error:
    raise VocabularyError(
      f"no SentencePiece model of {size} pieces can be learned ({error}); give "
      "a larger size"
    ) from error
  return SentencePieceVocabulary(model.getvalue())


def _loaded(model: bytes) -> SentencePieceProcessor:
  pieces = SentencePieceProcessor()
  try:
    with _loading:
      pieces.LoadFromSerializedProto(model)
  except RuntimeError as error:
    raise VocabularyError(
      "this is no SentencePiece model, as the spiece.model of a T5 is (a "
      "vocab.txt has wordpieces)"
    ) from error
  return pieces
