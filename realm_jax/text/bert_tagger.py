"""The paper's kind of tagger: BERT finds named entities, a rule finds dates.

REALM masks "named entities and dates": entities by a BERT that was fine-tuned
on CoNLL-2003, dates by a regular expression (section 3.4). Here the model is
any `BertForTokenClassification` in Hugging Face's format, cased or uncased, and
the rules of `realm_jax.text.salient_spans` find the dates.

The model reads sentences, padded to a few fixed lengths to limit compilation;
sentences that are too long are split. The padded length depends only on the
sentence, and batches of a length always have the same shape. For a given kind
and number of devices, the labels of a sentence therefore do not depend on the
other texts of a batch.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import Array, Int

from realm_jax.models.parameters import Params
from realm_jax.models.sequences import padded
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.embedding import round_up, rows_per_batch
from realm_jax.storage.local_disk import ScratchDirectory
from realm_jax.storage.paths import download, is_remote
from realm_jax.text import salient_spans
from realm_jax.text.languages import ENGLISH
from realm_jax.text.salient_spans import Span
from realm_jax.text.sentences import sentence_ranges
from realm_jax.text.vocabulary import Tokens
from realm_jax.weights import WeightsError
from realm_jax.weights.hugging_face import read_token_classifier

# Tokens of a batch, including padding: enough to keep the devices busy, and few
# enough that partial last batches of each length cost little for texts with
# some hundred thousand tokens. CPUs need fewer.
_TOKENS_PER_BATCH = 16_384
_TOKENS_PER_BATCH_ON_CPU = 2048
_FILES = ("*.json", "*.txt", "*.safetensors", "pytorch_model.bin")
# [CLS] and [SEP].
_NUM_SPECIAL_TOKENS = 2
# With these lengths, three quarters of the tokens for Wikipedia's sentences are
# text.
_LENGTHS = (24, 32, 48, 64, 96, 128, 256, 512)
_OUTSIDE = "O"
# Whether a word with this prefix always begins an entity.
_BEGINS = {"B": True, "S": True, "U": True, "I": False, "E": False, "L": False}
_KINDS = {
  "PER": "person",
  "ORG": "organization",
  "LOC": "location",
  "MISC": "miscellaneous",
}


class BertTagger:
  """A tagger that runs a token classifier on all devices of this process.

  One call with many texts is much faster than many calls. A tagger is pickled
  as the path of its directory, so each process that unpickles it reads the
  model once. It allocates devices for the first text, so a process that only
  passes it on leaves them to others.

  Args:
    directory: Folder of the model, which may be on an object store.
    language: Language of the texts, for splitting sentences.

  Raises:
    WeightsError: The directory has no BERT token classifier, or its labels are
      not entity labels.
    VocabularyError: The vocabulary cannot be used.
  """

  def __init__(self, directory: str, language: str = ENGLISH):
    self._directory, self._language = directory, language
    with contextlib.ExitStack() as stack:
      folder = Path(directory)
      if is_remote(directory):
        folder = stack.enter_context(ScratchDirectory()).path
        for pattern in _FILES:
          for path in epath.Path(directory).glob(pattern):
            download(path, folder / path.name)
      self._model = read_token_classifier(folder)
    self._vocabulary = self._model.vocabulary
    self._labels = parse_labels(self._model.labels)
    longest = min(self._model.module.bert.max_positions, _LENGTHS[-1])
    shorter = [length for length in _LENGTHS if length < longest]
    self._lengths = [*shorter, longest]

  def __reduce__(self) -> tuple[Any, ...]:
    return load, (self._directory, self._language)

  def __call__(self, text: str, title: str) -> list[Span]:
    """Returns the entities and dates of a text, ordered."""
    return self.tag_many([text], [title])[0]

  def tag_many(
    self, texts: Sequence[str], titles: Sequence[str]
  ) -> list[list[Span]]:
    """Returns the entities and dates of each text, ordered.

    A date that overlaps an entity is merged into it: the 2004 Summer Olympics.
    """
    spans_of_texts = self.entities(texts)
    for spans, text, title in zip(spans_of_texts, texts, titles, strict=True):
      is_taken = bytearray(len(text.encode()))
      for start, limit, _ in spans:
        is_taken[start:limit] = b"\1" * (limit - start)
      spans += (
        date
        for date in salient_spans.dates(text, title)
        if not any(is_taken[date.start : date.limit])
      )
      spans.sort()
    return spans_of_texts

  def entities(self, texts: Sequence[str]) -> list[list[Span]]:
    """Returns the entities that the model finds in each text, ordered.

    A word is a wordpiece with its continuations, and has the label of its first
    piece.
    """
    tokens = self._vocabulary.tokenize_with_offsets(texts)
    sentences = _token_sentences(texts, tokens, self._language)
    label_ids = self._label_ids(tokens.token_ids, sentences)
    is_word = ~self._vocabulary.is_continuation[tokens.token_ids]
    is_word[sentences[:, 0]] = True
    words = np.flatnonzero(is_word)
    limits = np.append(words[1:], len(is_word)) - 1
    words_and_kinds = entities(
      label_ids[words],
      np.searchsorted(sentences[:, 0], words, side="right"),
      self._labels,
    )
    spans: list[list[Span]] = [[] for _ in texts]
    for first, last, kind in words_and_kinds:
      row = np.searchsorted(tokens.row_offsets, words[first], side="right") - 1
      start = int(tokens.byte_ranges[words[first], 0])
      limit = int(tokens.byte_ranges[limits[last], 1])
      spans[row].append(Span(start, limit, kind))
    return spans

  def _label_ids(
    self, token_ids: Int[np.ndarray, " t"], sentences: Int[np.ndarray, "s 2"]
  ) -> Int[np.ndarray, " t"]:
    """Returns the most probable label of each token."""
    capacity = self._lengths[-1] - _NUM_SPECIAL_TOKENS
    parts = [
      slice(start, min(start + capacity, limit))
      for first, limit in sentences.tolist()
      for start in range(first, limit, capacity)
    ]
    sizes = np.array([part.stop - part.start for part in parts], np.int64)
    lengths = round_up(sizes + _NUM_SPECIAL_TOKENS, self._lengths)
    devices = jax.local_devices()
    on_cpus = devices[0].platform == "cpu"
    num_tokens = _TOKENS_PER_BATCH_ON_CPU if on_cpus else _TOKENS_PER_BATCH
    computed: list[tuple[list[slice], Array]] = []
    for length in np.unique(lengths).tolist():
      parts_of_length = [*itertools.compress(parts, lengths == length)]
      num_rows = rows_per_batch(length, num_tokens, multiple=len(devices))
      for begin in range(0, len(parts_of_length), num_rows):
        batch = parts_of_length[begin : begin + num_rows]
        rows = np.zeros((num_rows, length), np.int32)
        # Rows without a part are empty.
        rows[:, :2] = self._vocabulary.cls_id, self._vocabulary.sep_id
        for row, part in zip(rows, batch, strict=False):
          size = part.stop - part.start
          row[1 : size + 1] = token_ids[part]
          row[size + 1] = self._vocabulary.sep_id
        # Batches are only dispatched here, so that devices do not wait.
        computed.append((batch, self._label(rows)))
    label_ids = np.empty(len(token_ids), np.int32)
    for batch, on_device in computed:
      for row, part in zip(np.asarray(on_device), batch, strict=False):
        # A row begins with [CLS].
        label_ids[part] = row[1 : part.stop - part.start + 1]
    return label_ids

  @functools.cached_property
  def _label(self) -> Callable[[Int[np.ndarray, "r l"]], Int[Array, "r l"]]:
    """Computes the labels of rows, on all local devices."""
    mesh = make_mesh(devices=jax.local_devices())
    by_rows = sharding.batch_sharding(mesh)
    params = jax.device_put(self._model.params, sharding.replicated(mesh))

    @jax.jit
    def label(params: Params, rows: Int[Array, "r l"]) -> Int[Array, "r l"]:
      logits = self._model.module.apply({"params": params}, padded(rows))
      return logits.argmax(axis=-1).astype(np.int32)

    return lambda rows: label(params, jax.device_put(rows, by_rows))


@functools.cache
def load(directory: str, language: str = ENGLISH) -> BertTagger:
  """Returns a `BertTagger`, which a process makes once."""
  return BertTagger(directory, language)


def _token_sentences(
  texts: Sequence[str], tokens: Tokens, language: str
) -> Int[np.ndarray, "s 2"]:
  """Returns the token ranges of all sentences that have tokens, in order."""
  ranges = [np.zeros((0, 2), np.int64)]
  for row, text in enumerate(texts):
    first, last = tokens.row_offsets[row : row + 2].tolist()
    byte_starts = tokens.byte_ranges[first:last, 0]
    sentences = [start for start, _ in sentence_ranges(text, language)]
    starts = np.searchsorted(byte_starts, sentences)
    bounds = first + np.append(starts, last - first)
    ranges.append(np.stack([bounds[:-1], bounds[1:]], axis=1))
  token_ranges = np.concatenate(ranges)
  return token_ranges[token_ranges[:, 0] < token_ranges[:, 1]]


# --- Labels -------------------------------------------------------------------


def parse_labels(names: Sequence[str]) -> list[tuple[str, bool]]:
  """Reads the labels of a model: `O`, and others such as `B-PER`.

  Returns the kind of each, "" for none, and whether it begins an entity. The
  scheme may be IOB1, IOB2, BIOES or BILOU. The four kinds of CoNLL-2003 become
  person, organization, location and miscellaneous; other kinds become lower
  case. A label without a prefix counts as `I-`. Raises a `WeightsError` if
  there is no `O`, or no other label.
  """
  if _OUTSIDE not in names or len(names) < 2:
    raise WeightsError(
      f"the labels are {', '.join(names)}; want {_OUTSIDE} and those of "
      "entities, such as B-PER and I-PER"
    )
  labels = []
  for name in names:
    prefix, hyphen, kind = name.partition("-")
    if not hyphen or prefix not in _BEGINS:
      prefix, kind = "I", "" if name == _OUTSIDE else name
    kind = _KINDS.get(kind.upper(), kind.lower())
    labels.append((kind, _BEGINS[prefix]))
  return labels


def entities(
  label_ids: Int[np.ndarray, " w"],
  sentences: Int[np.ndarray, " w"],
  labels: Sequence[tuple[str, bool]],
) -> list[tuple[int, int, str]]:
  """Returns the first word, the last word and the kind of each entity.

  As in transformers' pipelines, a word continues the entity of the previous
  word if it has the same kind and does not begin one, so every sequence of
  labels is valid. `sentences` has the index of each word's sentence; entities
  do not cross sentences.
  """
  kinds = np.array([kind for kind, _ in labels])[label_ids]
  begins = np.array([begins for _, begins in labels])[label_ids]
  same = (kinds[1:] == kinds[:-1]) & (sentences[1:] == sentences[:-1])
  continues = np.append(False, same & ~begins[1:])[: len(kinds)]
  is_inside = kinds != ""
  firsts = np.flatnonzero(is_inside & ~continues)
  lasts = np.flatnonzero(is_inside & ~np.append(continues[1:], False))
  of_first = kinds[firsts].tolist()
  return list(zip(firsts.tolist(), lasts.tolist(), of_first, strict=True))
