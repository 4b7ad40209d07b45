"""The stored rows of the blocks that contain each answer.

answers.json     manifest, written last
offsets.npy      the rows of answer i are rows[offsets[i]:offsets[i + 1]]
rows.npy         rows of blocks, sorted for each answer
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.files.checksum import sha256_of
from realm_jax.files.json_file import write_json
from realm_jax.files.json_value import JsonValue
from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import download, is_remote

MANIFEST = "answers.json"
_FORMAT_VERSION = 2


class AnswersError(ValueError):
  """A store of answers that is missing, damaged or cannot be made."""


class AnswerStore:
  """Rows of blocks by the number of the answer, memory-mapped."""

  def __init__(self, directory: Path):
    self._offsets = _mapped(directory, "offsets")
    self._rows = _mapped(directory, "rows")

  @classmethod
  def open(cls, directory: epath.PathLike, key: str) -> "AnswerStore":
    """Opens a store and verifies all of its files.

    Raises:
      AnswersError: It is missing, damaged, or of other answers or blocks.
    """
    source = epath.Path(directory)
    try:
      manifest = json.loads((source / MANIFEST).read_text())
      found = manifest["format_version"], manifest["key"]
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise AnswersError(f"there is no whole store at {source}") from error
    if found != (_FORMAT_VERSION, key):
      raise AnswersError(f"{source} is of another format or of other answers")
    with _local(source, manifest["files"]) as local:
      for name, record in manifest["files"].items():
        path = local / name
        if not path.is_file() or sha256_of(path) != record["sha256"]:
          raise AnswersError(f"{source / name} is missing or damaged")
      return cls(local)

  @property
  def num_answers(self) -> int:
    """The number of answers."""
    return len(self._offsets) - 1

  @property
  def num_pairs(self) -> int:
    """The number of pairs of an answer and a block that contains it."""
    return len(self._rows)

  @property
  def num_not_found(self) -> int:
    """The number of answers that no block contains."""
    return int(np.count_nonzero(np.diff(self._offsets) == 0))

  def rows(self, number: int) -> Int[np.ndarray, " n"]:
    """Returns the sorted rows of the blocks that contain an answer."""
    return self._rows[self._offsets[number] : self._offsets[number + 1]]


def write_store_manifest(directory: Path, key: str) -> None:
  """Writes the manifest of the arrays in a directory."""
  files: dict[str, JsonValue] = {
    path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    for path in sorted(directory.glob("*.npy"))
  }
  write_json(
    directory / MANIFEST,
    {
      "format_version": _FORMAT_VERSION,
      "key": key,
      "files": files,
    },
  )


def _mapped(directory: Path, name: str) -> np.ndarray:
  array = np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
  return array.view(np.ndarray)


@contextlib.contextmanager
def _local(
  directory: epath.Path, files: Mapping[str, object]
) -> Iterator[Path]:
  """Yields a local directory of the files.

  Those on an object store are copied. The copy is removed when the block ends;
  what is mapped stays readable.
  """
  if not is_remote(directory):
    yield Path(directory)
    return
  with ScratchDirectory() as scratch:
    for name in files:
      with contextlib.suppress(FileNotFoundError):
        download(directory / name, scratch.path / name)
    yield scratch.path
