"""Records that TFDS has prepared, read in their order.

Preparing them needs the extra `tfds`; reading does not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from realm_jax.inputs.questions.question import QuestionFileError


def command(builder: str, directory: epath.PathLike | None = None) -> str:
  """Returns the command that downloads and prepares a data set."""
  where = f", data_dir={str(directory)!r}" if directory else ""
  return (
    'python -c "import tensorflow_datasets as tfds; '
    f'tfds.builder({builder!r}{where}).download_and_prepare()"'
  )


def read(
  builder: str, split: str, directory: epath.PathLike | None = None
) -> Iterator[Mapping[str, Any]]:
  """Yields the records of a split as trees of numpy values; texts are bytes.

  Nothing is downloaded.

  Args:
    builder: Name of TFDS's builder, with its configuration.
    split: TFDS's name of the split.
    directory: TFDS's folder; None is where TFDS keeps its data.

  Raises:
    QuestionFileError: The data set is not prepared there.
  """
  found = tfds.builder(builder, data_dir=directory)
  if not found.is_prepared():
    raise QuestionFileError(
      f"TFDS has not prepared {builder} in {found.data_dir}; run "
      f"{command(builder, directory)}"
    )
  yield from tfds.as_numpy(found.as_dataset(split=split, shuffle_files=False))
