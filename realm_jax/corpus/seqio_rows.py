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
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import seqio
import tensorflow_datasets as tfds
from etils import epath

from realm_jax.corpus import InputError
from realm_jax.inputs.config import TaskError
from realm_jax.inputs.examples import find_task

_VERSION = re.compile(r"\d+\.\d+\.\d+")

Records = Iterator[Mapping[str, Any]]


def shards(source: str) -> list[Callable[[], Records]]:
  """Returns what reads each shard of an input, `tfds:…` or `seqio:…`.

  Raises:
    InputError: There is no such data set, task or split.
  """
  opened, split = _open(source)
  with _explained(source):
    splits = sorted(opened.splits)
    num_shards = len(opened.list_shards(split)) if split in splits else 0
  if split not in splits:
    raise InputError(
      f"--input={source} has no split {split!r}; write one that it has behind "
      f"the task: {', '.join(splits) or 'it has none, and so no documents'}"
    )
  return [
    functools.partial(_records, source, index, num_shards)
    for index in range(num_shards)
  ]


def _records(source: str, index: int, num_shards: int) -> Records:
  """Yields the records of a shard, in its order."""
  opened, split = _open(source)
  shard = seqio.ShardInfo(index=index, num_shards=num_shards)
  with _explained(source):
    dataset = opened.get_dataset(split, shuffle=False, shard_info=shard)
  yield from dataset.as_numpy_iterator()


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
    task = find_task(name, [module])
  except TaskError as error:
    raise InputError(f"--input={source}: {error}") from error
  if not isinstance(task, seqio.Task):
    raise InputError(f"--input={source} is a mixture; give one of its tasks")
  return task.source, split


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
