"""Views: the titles and bodies of a corpus in the vocabulary of a reader.

A view `t5` adds a SentencePiece model to the corpus's directory,
`views/t5.model`, and these arrays to each shard:

    t5.token_ids.npy           title and body of each block, without specials
    t5.token_ids_offsets.npy
    t5.title_lengths.npy

They depend only on the texts and the model. So a view is not part of the
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
from realm_jax.corpus.manifest import VIEWS, ShardRecord
from realm_jax.corpus.shard import Shard
from realm_jax.storage.local_disk import save_array
from realm_jax.storage.staging import FileRecord
from realm_jax.text.vocabulary import Vocabulary

if TYPE_CHECKING:
  from realm_jax.corpus.store import Corpus
  from realm_jax.text.sentencepieces import SentencePieceVocabulary

# Vocabularies by the names of views.
Vocabularies: TypeAlias = Mapping[str, "SentencePieceVocabulary"]

# Arrays of a shard from which views are made.
TEXTS = "bodies bodies_offsets titles titles_offsets document_starts".split()
# Bytes of text from which a SentencePiece model is learned; larger corpora are
# sampled.
LEARNED_BYTES = 32 << 20
# Each block repeats its title, so a longer one is cut.
_LONGEST_TITLE = 128


class ViewedBlocks(NamedTuple):
  """The titles and bodies of blocks in a view.

  Row i of `token_ids` has `title_lengths[i]` ids of the title, followed by the
  body's ids, `lengths[i]` in all, and is padded with 0.
  """

  token_ids: Int[np.ndarray, "*s length"]
  title_lengths: Int[np.ndarray, "*s"]
  lengths: Int[np.ndarray, "*s"]


class View:
  """A view of a corpus by its name; None is the corpus's own wordpieces.

  Raises:
    CorpusError: The corpus has no such view.
  """

  def __init__(self, corpus: "Corpus", name: str | None):
    self.corpus, self.name, self.digest = corpus, name, corpus.vocab_sha256
    self._prefix = ""
    if name is not None:
      if name not in corpus.views:
        raise CorpusError(
          f"{corpus.source} has no view {name!r} (it has "
          f"{', '.join(corpus.views) or 'none'}); add it: build_corpus --update"
          f" --view={name}:spiece.model --output_dir={corpus.source}"
        )
      self.digest, self._prefix = corpus.views[name]["sha256"], f"{name}."

  @functools.cached_property
  def vocabulary(self) -> Vocabulary:
    """The vocabulary of the view."""
    if self.name is None:
      return self.corpus.vocabulary
    from realm_jax.text.sentencepieces import read_sentencepieces

    path = self.corpus.local(self.corpus.views[self.name]["path"])
    vocabulary = read_sentencepieces(path)
    if vocabulary.digest != self.digest:
      raise CorpusError(
        f"{path} is not the model that the view {self.name!r} was made with; "
        "put that back, or add a view of another name (build_corpus --view)"
      )
    return vocabulary

  def gather(self, rows: Int[np.ndarray, "*s"], length: int) -> ViewedBlocks:
    """Returns the titles and bodies of many blocks, int32.

    Titles are truncated to half of the length, and bodies to the rest. The null
    block is empty.
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
      # In the array, the body follows the whole title.
      skipped = (whole_titles - cut_titles)[:, np.newaxis]
      source = starts[:, np.newaxis] + column
      source += np.where(column < cut_titles[:, np.newaxis], 0, skipped)
      tokens = shard.array(f"{self._prefix}token_ids").take(source, mode="clip")
      ids[indices] = np.where(column < limits[:, np.newaxis], tokens, 0)
      titles[indices], totals[indices] = cut_titles, limits
    shape = rows.shape
    return ViewedBlocks(
      ids.reshape(*shape, length), titles.reshape(shape), totals.reshape(shape)
    )


# --- Making views -------------------------------------------------------


def parse_views(
  views: Sequence[str], *, known: Iterable[str] = ()
) -> "dict[str, Callable[[Iterable[str]], SentencePieceVocabulary]]":
  """Parses --view: returns functions that make the views' vocabularies.

  Each function takes the texts to learn from. Raises a `CorpusError` for a
  malformed view or a `known` name, and a `VocabularyError` for a model that
  cannot be read.
  """
  from realm_jax.text import sentencepieces

  parsed: dict[str, Any] = {}
  for view in views:
    match = re.fullmatch(r"(\w+):(?:train:(\d+)|(?!train:)(.+))", view)
    if match is None:
      raise CorpusError(
        f"--view={view}; want NAME:spiece.model or NAME:train:SIZE"
      )
    name, size, path = match.groups()
    if name in (*known, *parsed):
      raise CorpusError(f"--view={view}: take another name; {name} is there")
    train = sentencepieces.train_sentencepieces
    parsed[name] = functools.partial(train, size=int(size or 0))
    if path:
      read = sentencepieces.read_sentencepieces(path)
      parsed[name] = lambda _, read=read: read
  return parsed


def write_views(
  views: Vocabularies, source: Path, target: Path, record: ShardRecord
) -> ShardRecord:
  """Writes views of a shard of `source` to `target`; returns its new record."""
  shard = Shard(record, source.joinpath, record["span_kinds"])
  (target / record["name"]).mkdir(parents=True, exist_ok=True)
  starts = shard.array("document_starts").tolist()
  files = {**record.get("views", {})}
  for view, vocabulary in views.items():
    dtype = "<u2" if vocabulary.size <= 1 << 16 else "<i4"
    # Arrays take less memory than lists.
    parts, titles = [np.zeros(0, dtype)], list[int]()
    for document, (first, limit) in enumerate(itertools.pairwise(starts)):
      text = shard.item("titles", document).tobytes().decode()
      title = vocabulary.encode(text)[:_LONGEST_TITLE]
      for position in range(first, limit):
        body = shard.item("bodies", position).tobytes().decode()
        parts.append(np.array([*title, *vocabulary.encode(body)], dtype))
        titles.append(len(title))
    files[view] = {}
    for name, array in (
      ("token_ids", np.concatenate(parts)),
      ("token_ids_offsets", np.cumsum([*map(len, parts)], dtype="<i8")),
      ("title_lengths", np.array(titles, "<i4")),
    ):
      path = target / record["name"] / f"{view}.{name}.npy"
      save_array(path, array)
      files[view][path.name] = FileRecord.of(path, path.name).entry
  return {**record, "views": files} if files else record


def write_models(directory: Path, views: Vocabularies) -> dict[str, Any]:
  """Writes the models of views; returns their records for the manifest."""
  records = {}
  for name, vocabulary in views.items():
    path = f"{VIEWS}/{name}.model"
    (directory / VIEWS).mkdir(exist_ok=True)
    (directory / path).write_bytes(vocabulary.model)
    records[name] = {
      "path": path,
      "size": vocabulary.size,
      **FileRecord.of(directory / path, path).entry,
    }
  return records
