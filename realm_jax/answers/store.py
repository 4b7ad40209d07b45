"""The stored rows of the blocks that contain each answer.

answers.json     manifest, written last
offsets.npy      the rows of answer i are rows[offsets[i]:offsets[i + 1]]
rows.npy         rows of blocks, sorted for each answer
"""

import json
from pathlib import Path

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.files.json_file import write_json
from realm_jax.files.json_value import JsonValue
from realm_jax.files.staging import FileRecord, StagedFiles, record_files

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
    records = [
      FileRecord(name, record["bytes"], record["sha256"])
      for name, record in manifest["files"].items()
    ]
    staged = StagedFiles(source, records, error=AnswersError)
    return cls(staged.get([record.path for record in records]))

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
  names = sorted(path.name for path in directory.glob("*.npy"))
  files: dict[str, JsonValue] = {
    file.path: {"bytes": file.size, "sha256": file.sha256}
    for file in record_files(directory, names)
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
