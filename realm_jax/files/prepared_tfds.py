"""Data sets that TFDS has prepared, on disk or on an object store.

Preparing them needs the extra `tfds`; reading does not, and downloads nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds
from etils import epath


class NotPreparedError(ValueError):
  """A data set that TFDS does not know, or has not prepared."""


def command(name: str, directory: epath.PathLike | None = None) -> str:
  """Returns the command that downloads and prepares a data set."""
  where = f", data_dir={str(directory)!r}" if directory else ""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({name!r}{where}).download_and_prepare()"'
  )


def open_builder(
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
      f"{command(name, directory)}, or set TFDS_DATA_DIR to where it is"
    )
  return found


def read(
  name: str, split: str, directory: epath.PathLike | None = None
) -> Iterator[Mapping[str, Any]]:
  """Yields the records of a split as trees of numpy values; texts are bytes.

  Raises:
    NotPreparedError: As `open_builder`.
  """
  found = open_builder(name, directory)
  yield from tfds.as_numpy(found.as_dataset(split=split, shuffle_files=False))
