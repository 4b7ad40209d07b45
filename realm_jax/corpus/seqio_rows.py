"""Rows of TFDS data sets and of other seqio sources.

    tfds:salient_span_wikipedia/documents        split "train", newest version
    tfds:wikipedia/20230601.en:1.0.0             a version
    tfds:wikipedia/20230601.en:1.0.0:train       a version and a split
    seqio:MODULE:TASK[:SPLIT]                    the source of a seqio task

Records have `title` and `text`, and maybe `id` and `url`. A record that also
has `sentences` and `spans`, as in `salient_span_wikipedia/documents`, is a
block as it stands.
"""

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import seqio
import tensorflow_datasets as tfds
from etils import epath

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Document, document_of
from realm_jax.corpus.sources import InputFile, Row

_FIELDS = ("id", "title", "text", "url")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclasses.dataclass(frozen=True)
class SeqioShard(InputFile):
  """One of the shards of a source, the `index`-th of `num_shards`.

  `source` is the input that names it. Rows with the same contents are documents
  of their own.
  """

  source: str = ""
  index: int = 0
  num_shards: int = 1
  numbers_repeats: ClassVar[bool] = True

  def rows(self, start: int = 0) -> Iterator[Mapping[str, object]]:
    """Yields all records, in the order of the shard; they cannot be seeked."""
    del start
    source, split = _open(self.source)
    shard = seqio.ShardInfo(index=self.index, num_shards=self.num_shards)
    with _explained(self.source):
      dataset = source.get_dataset(split, shuffle=False, shard_info=shard)
    yield from dataset.as_numpy_iterator()

  def parse(self, row: Row, *, place: str, of_update: bool) -> Document:
    """Reads a record; raises `InputError` if it has no title or text."""
    assert isinstance(row, Mapping)
    fields = {key: _field(row, key) for key in _FIELDS if key in row}
    document = document_of(fields, place=place, of_update=of_update)
    assert isinstance(document, Document)  # A record has no field "remove".
    if "sentences" not in row or "spans" not in row:
      return document
    spans, sentences = row["spans"], row["sentences"]
    assert isinstance(spans, Mapping)
    assert isinstance(sentences, Mapping)
    kinds = np.asarray(spans["type"]).tolist()
    return document._replace(
      is_block=True,
      sentences=_ranges(sentences),
      spans=[
        (start, limit, kind.decode())
        for (start, limit), kind in zip(_ranges(spans), kinds, strict=True)
      ],
    )

  def place(self, number: int) -> str:
    """Returns the shard's name and the number of the record in it."""
    return f"{self.name}, record {number}"


def seqio_shards(source: str) -> list[SeqioShard]:
  """Returns the shards of an input that begins with `tfds:` or `seqio:`.

  Raises:
    InputError: There is no such data set, task or split.
  """
  opened, split = _open(source)
  with _explained(source):
    splits = sorted(opened.splits)
    names = opened.list_shards(split) if split in splits else []
  if split not in splits:
    raise InputError(
      f"--input={source} has no split {split!r}; "
      + (
        f"write one that it has behind the task: {', '.join(splits)}"
        if splits
        else "it has none at all, and so no documents"
      )
    )
  return [
    SeqioShard(f"{source} shard {index}", source, index, len(names))
    for index in range(len(names))
  ]


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
  """Explains the errors of tasks, such as ours, that only a run can read."""
  try:
    yield
  except ValueError as error:
    raise InputError(
      f"--input={source}: the task reads the corpus or the questions of a run, "
      "and has no documents of its own; give one that has"
    ) from error


@functools.cache
def _open(source: str) -> tuple[seqio.DataSource, str]:
  """Opens an input; returns its source and split."""
  kind, *parts = source.split(":")
  if kind == "tfds":
    return _open_tfds(source, parts)
  if not 2 <= len(parts) <= 3:
    raise InputError(f"--input={source}; wanted seqio:MODULE:TASK[:SPLIT]")
  module, name, split = [*parts, "train"][:3]
  try:
    package = importlib.import_module(module)
    # A package such as `tasks` registers a task in each of its modules.
    for found in pkgutil.iter_modules(getattr(package, "__path__", ())):
      importlib.import_module(f"{module}.{found.name}")
  except ModuleNotFoundError as error:
    raise InputError(
      f"--input={source}: no module {module!r} ({error}); give the one that "
      "registers the task"
    ) from error
  if name not in seqio.TaskRegistry.names():
    known = ", ".join(sorted(seqio.TaskRegistry.names()))
    raise InputError(
      f"--input={source}: {module} registers no task {name!r}; "
      + (f"there are {known}" if known else "it registers none at all")
    )
  return seqio.TaskRegistry.get(name).source, split


def _open_tfds(source: str, parts: list[str]) -> tuple[seqio.DataSource, str]:
  name = parts.pop(0)
  version = parts.pop(0) if parts and _VERSION.fullmatch(parts[0]) else None
  if len(parts) > 1:
    raise InputError(f"--input={source}; wanted tfds:NAME[/CONFIG][:SPLIT]")
  try:
    builder = open_prepared(f"{name}:{version}" if version else name)
  except NotPreparedError as error:
    raise InputError(f"--input={source}: {error}") from error
  # NAME/CONFIG/VERSION, which is also where the data stand in TFDS_DATA_DIR.
  name, _, version = builder.info.full_name.rpartition("/")
  root = str(builder.data_dir).removesuffix(builder.info.full_name)
  opened = seqio.TfdsDataSource(f"{name}:{version}", tfds_data_dir=root)
  return opened, parts[0] if parts else "train"


def _field(row: Mapping[str, object], key: str) -> object:
  """Returns a field as JSON would give it."""
  value = row[key]
  if isinstance(value, np.generic):
    value = value.item()
  try:
    return value.decode("utf-8") if isinstance(value, bytes) else value
  except UnicodeDecodeError as error:
    raise InputError(f"{key!r} is not UTF-8 (byte {error.start + 1})") from None


def _ranges(record: Mapping[str, object]) -> list[tuple[int, int]]:
  """Returns the `start` and `limit` of a sequence's items."""
  starts = np.asarray(record["start"]).tolist()
  return list(zip(starts, np.asarray(record["limit"]).tolist(), strict=True))


# --- Data sets that TFDS has prepared -----------------------------------
# Preparing them needs the extra `tfds`. Reading them does not, and downloads
# nothing.


class NotPreparedError(ValueError):
  """A data set that TFDS does not know, or has not prepared."""


def preparation(name: str, directory: epath.PathLike | None = None) -> str:
  """Returns the command that downloads and prepares a data set."""
  where = f", data_dir={str(directory)!r}" if directory else ""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({name!r}{where}).download_and_prepare()"'
  )


def open_prepared(
  name: str, directory: epath.PathLike | None = None
) -> tfds.core.DatasetBuilder:
  """Opens a data set.

  Args:
    name: Name of TFDS's builder, with its configuration and version, if any.
    directory: TFDS's folder; None is where TFDS keeps its data.

  Raises:
    NotPreparedError: There is no such data set, or it is not prepared there.
  """
  try:
    found = tfds.builder(name, data_dir=directory)
  except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
    raise NotPreparedError(f"TFDS cannot open {name}: {error}") from error
  if not found.is_prepared():
    raise NotPreparedError(
      f"TFDS has not prepared {name} in {found.data_dir}; run "
      f"{preparation(name, directory)}, or set TFDS_DATA_DIR to where it is"
    )
  return found


def read_prepared(
  name: str, split: str, directory: epath.PathLike | None = None
) -> Iterator[Mapping[str, Any]]:
  """Yields the records of a split as trees of numpy values; texts are bytes.

  Raises:
    NotPreparedError: As `open_prepared`.
  """
  found = open_prepared(name, directory)
  yield from tfds.as_numpy(found.as_dataset(split=split, shuffle_files=False))
