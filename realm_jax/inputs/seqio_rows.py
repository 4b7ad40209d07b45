"""Rows of TFDS data sets and of other seqio sources.

    tfds:salient_span_wikipedia/documents        split "train", newest version
    tfds:wikipedia/20230601.en:1.0.0             a version
    tfds:wikipedia/20230601.en:1.0.0:train       a version and a split
    seqio:MODULE:TASK[:SPLIT]                    the source of a seqio task

Records have `title` and `text`, and may have `id` and `url`. A record that also
has `sentences` and `spans`, as in `salient_span_wikipedia/documents`, is kept
as a single block.

Preparing data sets of TFDS needs the extra `tfds`. Reading them does not, and
downloads nothing.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import seqio
import tensorflow_datasets as tfds
from etils import epath

from realm_jax.corpus import InputError
from realm_jax.inputs.examples import find_task

_VERSION = re.compile(r"\d+\.\d+\.\d+")

Records = Iterator[Mapping[str, Any]]


def shards(source: str) -> list[Callable[[], Records]]:
  """Returns a reader for each shard of an input, `tfds:…` or `seqio:…`.

  Raises:
    InputError: There is no such data set or split.
    TaskError: There is no such task, or it reads the corpus of a run.
  """
  data_source, split = _open(source)
  splits = sorted(data_source.splits)
  if split not in splits:
    raise InputError(
      f"--input={source} has no split {split!r}; write one that it has behind "
      f"the task: {', '.join(splits) or 'it has none, and so no documents'}"
    )
  num_shards = len(data_source.list_shards(split))
  return [
    functools.partial(_records, source, index, num_shards)
    for index in range(num_shards)
  ]


def _records(source: str, index: int, num_shards: int) -> Records:
  """Yields the records of a shard, in its order."""
  data_source, split = _open(source)
  shard = seqio.ShardInfo(index=index, num_shards=num_shards)
  dataset = data_source.get_dataset(split, shuffle=False, shard_info=shard)
  yield from dataset.as_numpy_iterator()


@functools.cache
def _open(source: str) -> tuple[seqio.DataSource, str]:
  """Opens an input; returns its source and split."""
  kind, name, *parts = source.split(":")
  if kind == "tfds":
    if parts and _VERSION.fullmatch(parts[0]):
      name += f":{parts.pop(0)}"
    if len(parts) > 1:
      raise InputError(f"--input={source}; wanted tfds:NAME[/CONFIG][:SPLIT]")
    builder = _open_prepared(name)
    # NAME/CONFIG/VERSION, which is also the data's folder in TFDS_DATA_DIR.
    full_name = builder.info.full_name
    data_source = seqio.TfdsDataSource(
      ":".join(full_name.rsplit("/", 1)),
      tfds_data_dir=str(builder.data_dir).removesuffix(full_name),
    )
    return data_source, parts[0] if parts else "train"
  if not 1 <= len(parts) <= 2:
    raise InputError(f"--input={source}; wanted seqio:MODULE:TASK[:SPLIT]")
  task = find_task(parts[0], [name])
  if not isinstance(task, seqio.Task):
    raise InputError(f"--input={source} is a mixture; give one of its tasks")
  return task.source, parts[1] if parts[1:] else "train"


def preparation(name: str, directory: epath.PathLike | None = None) -> str:
  """Returns the command that downloads and prepares a data set of TFDS."""
  where = f", data_dir={str(directory)!r}" if directory else ""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({name!r}{where}).download_and_prepare()"'
  )


def read_prepared(
  name: str, split: str, directory: epath.PathLike | None = None
) -> Iterator[Mapping[str, Any]]:
  """Returns the records of a data set that TFDS has prepared.

  `name` is TFDS's name of the builder, with its configuration and version, if
  any. `directory` is TFDS's data directory by default. Raises an `InputError`
  if there is no such data set, or it is not prepared there.
  """
  builder = _open_prepared(name, directory)
  return iter(tfds.as_numpy(builder.as_dataset(split=split)))


def _open_prepared(
  name: str, directory: epath.PathLike | None = None
) -> tfds.core.DatasetBuilder:
  try:
    builder = tfds.builder(name, data_dir=directory)
  except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
    raise InputError(f"TFDS cannot open {name}: {error}") from error
  if not builder.is_prepared():
    raise InputError(
      f"TFDS has not prepared {name} in {builder.data_dir}; run "
      f"{preparation(name, directory)}, or set TFDS_DATA_DIR to where it is"
    )
  return builder
