"""Views: the titles and bodies of a corpus in the vocabulary of a reader.

A view `t5` adds a SentencePiece model to the corpus's directory,
`views/t5.model`, and these arrays to each shard, like those without `t5.`:

    t5.token_ids.npy           title and body of each block, without specials
    t5.token_ids_offsets.npy
    t5.title_lengths.npy

They follow from the texts and the model alone. So a view is no part of the
corpus's fingerprint, and adding one leaves runs and index snapshots valid.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

from realm_jax.corpus import CorpusError
from realm_jax.corpus.manifest import ShardRecord, model_path
from realm_jax.corpus.shard import Shard
from realm_jax.storage.local_disk import save_array
from realm_jax.storage.staging import FileRecord
from realm_jax.text.vocabulary import Vocabulary

if TYPE_CHECKING:
  from realm_jax.corpus.store import Corpus
  from realm_jax.text.sentencepieces import SentencePieceVocabulary

# Vocabularies of views by name.
Vocabularies: TypeAlias = Mapping[str, "SentencePieceVocabulary"]

# Arrays of a shard that views are made from.
TEXTS = (
  *("bodies", "bodies_offsets", "titles", "titles_offsets"),
  "document_starts",
)
# Bytes of text that a SentencePiece model is learned from; of more, a sample.
LEARNED_BYTES = 32 << 20
# Each block repeats its title, so a longer one is cut.
_LONGEST_TITLE = 128
_TRAIN = "train:"


class ViewedBlocks(NamedTuple):
  """The titles and bodies of blocks in a view.

  Row i of `token_ids`, which is padded with 0, has `title_lengths[i]` ids of
  the title and then those of the body, `lengths[i]` in all.
  """

  token_ids: Int[np.ndarray, "*s length"]
  title_lengths: Int[np.ndarray, "*s"]
  lengths: Int[np.ndarray, "*s"]


class View:
  """A view of a corpus, memory-mapped; `Corpus.view` opens one."""

  def __init__(self, corpus: "Corpus", name: str | None, digest: str):
    self.corpus, self.name, self.digest = corpus, name, digest
    self._prefix = f"{name}." if name else ""

  @functools.cached_property
  def vocabulary(self) -> Vocabulary:
    """The vocabulary of the view."""
    if self.name is None:
      return self.corpus.vocabulary
    from realm_jax.text.sentencepieces import read_sentencepieces

    path = self.corpus.local(model_path(self.name))
    found = read_sentencepieces(path)
    if found.digest != self.digest:
      raise CorpusError(
        f"{path} is not the model that the view was made with; put that back, "
        "or add a view of another name"
      )
    return found

  def require_vocabulary(self, digest: str) -> None:
    """Raises `CorpusError` if a reader has another vocabulary."""
    if digest != self.digest:
      what = f"the view {self.name!r}" if self.name else "the text"
      raise CorpusError(
        f"{what} of {self.corpus.source} has the vocabulary {self.digest[:12]} "
        f"(SHA-256), and the reader {digest[:12]}; add a view with the "
        f"reader's spiece.model: {_command(self.corpus.source, 'NAME')}"
      )

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " N"]:
    """Tokens of the title and body of each block of the corpus, int32."""
    name = f"{self._prefix}token_ids_offsets"
    found = [np.diff(s.array(name))[s.kept] for s in self.corpus.shards]
    return np.concatenate(found).astype(np.int32)

  def gather(self, rows: Int[np.ndarray, "*s"], length: int) -> ViewedBlocks:
    """Returns the titles and bodies of many blocks, int32.

    A title has at most half of the length; a longer one, and then the body,
    loses its end. The null block is empty.
    """
    rows = np.asarray(rows)
    ids = np.zeros((rows.size, length), np.int32)
    titles, totals = np.zeros((2, rows.size), np.int32)
    column = np.arange(length)
    for shard, indices, positions in self.corpus.by_shard(rows.reshape(-1)):
      offsets = shard.array(f"{self._prefix}token_ids_offsets")
      whole_titles = shard.array(f"{self._prefix}title_lengths")[positions]
      cut_titles = np.minimum(whole_titles, length // 2)
      starts = offsets[positions]
      bodies = offsets[positions + 1] - starts - whole_titles
      limits = np.minimum(cut_titles + bodies, length)
      # In the array, the body comes after the end that the title has lost.
      skipped = (whole_titles - cut_titles)[:, np.newaxis]
      source = starts[:, np.newaxis] + column
      source += np.where(column < cut_titles[:, np.newaxis], 0, skipped)
      found = shard.array(f"{self._prefix}token_ids").take(source, mode="clip")
      is_token = column < limits[:, np.newaxis]
      ids[indices] = np.where(is_token, found, 0)
      titles[indices], totals[indices] = cut_titles, limits
    return ViewedBlocks(
      ids.reshape(*rows.shape, length),
      titles.reshape(rows.shape),
      totals.reshape(rows.shape),
    )


def unknown_view(corpus: "Corpus", name: str) -> CorpusError:
  """Returns the error of a view that a corpus does not have."""
  return CorpusError(
    f"{corpus.source} has no view {name!r} (it has "
    f"{', '.join(corpus.views) or 'none'}); add it: "
    f"{_command(corpus.source, name)}"
  )


def _command(source: Any, name: str) -> str:
  return (
    f"python -m realm_jax.build_corpus --update --view={name}:spiece.model "
    f"--output_dir={source}"
  )


# --- Making views -------------------------------------------------------


def parse_views(
  views: Sequence[str], *, known: Sequence[str] = ()
) -> "dict[str, SentencePieceVocabulary | int]":
  """Returns the vocabulary of each view, or the size of one to learn.

  Args:
    views: `NAME:spiece.model`, or `NAME:train:SIZE`.
    known: Names of views that the corpus has.

  Raises:
    CorpusError: A view is written in another way, or its name is taken.
    VocabularyError: A model cannot be read.
  """
  from realm_jax.text.sentencepieces import read_sentencepieces

  found: dict[str, SentencePieceVocabulary | int] = {}
  for text in views:
    name, _, model = text.partition(":")
    size = model.removeprefix(_TRAIN)
    trains = model.startswith(_TRAIN)
    if not (re.fullmatch(r"\w+", name) and model) or (
      trains and not size.isdecimal()
    ):
      raise CorpusError(
        f"--view={text}; want NAME:spiece.model or NAME:train:SIZE, such as "
        "t5:spiece.model or t5:train:8000"
      )
    if name in (*known, *found):
      raise CorpusError(
        f"--view={text}: there is a view {name!r}; take another name"
      )
    found[name] = int(size) if trains else read_sentencepieces(model)
  return found


def learn_views(
  views: "Mapping[str, SentencePieceVocabulary | int]",
  texts: Callable[[], Iterable[str]],
) -> Vocabularies:
  """Returns the vocabularies of views, once those to learn have been learned.

  `texts()` yields the titles and bodies to learn from.
  """
  from realm_jax.text.sentencepieces import train_sentencepieces

  return {
    name: train_sentencepieces(texts(), view) if isinstance(view, int) else view
    for name, view in views.items()
  }


def write_views(
  source: Path, target: Path, views: Vocabularies, record: ShardRecord
) -> ShardRecord:
  """Writes views of a shard; returns its record with these.

  The shard is in the directory `source`, and its new files go to the folder of
  its name in `target`.
  """
  shard = Shard(record, source.joinpath, record["span_kinds"])
  folder = target / record["name"]
  folder.mkdir(parents=True, exist_ok=True)
  files = {**record.get("views", {})}
  for name, vocabulary in views.items():
    files[name] = {}
    for array, values in _arrays(shard, vocabulary).items():
      path = folder / f"{name}.{array}.npy"
      save_array(path, values)
      files[name][path.name] = FileRecord.of(path, path.name).entry
  return {**record, "views": files} if files else record


def _arrays(shard: Shard, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
  dtype = "<u2" if vocabulary.size <= 1 << 16 else "<i4"
  # Arrays take less memory than the lists that they are made of.
  parts, titles = [np.zeros(0, dtype)], list[int]()
  starts = shard.array("document_starts").tolist()
  for document, (first, limit) in enumerate(itertools.pairwise(starts)):
    text = shard.item("titles", document).tobytes().decode()
    title = vocabulary.encode(text)[:_LONGEST_TITLE]
    for position in range(first, limit):
      body = shard.item("bodies", position).tobytes().decode()
      parts.append(np.array([*title, *vocabulary.encode(body)], dtype))
      titles.append(len(title))
  lengths = [len(part) for part in parts]
  return {
    "token_ids": np.concatenate(parts),
    "token_ids_offsets": np.cumsum(lengths, dtype="<i8"),
    "title_lengths": np.array(titles, "<i4"),
  }


def write_models(directory: Path, views: Vocabularies) -> dict[str, Any]:
  """Writes the models of views; returns their records for the manifest."""
  records = {}
  for name, vocabulary in views.items():
    path = directory / model_path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(vocabulary.model)
    entry = FileRecord.of(path, path.name).entry
    records[name] = {**entry, "size": vocabulary.size}
  return records
