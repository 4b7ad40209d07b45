"""Forms in which a data set of questions is published: files, or TFDS."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from realm_jax.inputs.questions.question import Question

# All training questions, where published files do not set a tenth aside.
TRAIN_AND_DEV = "train+dev"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Files:
  """A form of a data set: files of one folder.

  Attributes:
    names: Names of each split's files, in order; `*` stands for any text.
      Without "dev", a tenth of "train" is the development set.
    read: Function that reads one file.
    sizes: Number of questions in each split, if it is not the data set's.
  """

  names: Mapping[str, Sequence[str]]
  read: Callable[[epath.Path], Iterable[Question]]
  sizes: Mapping[str, int] | None = None

  def __str__(self) -> str:
    return ", ".join(name for part in self.names.values() for name in part)

  def paths(self, folder: epath.Path, part: str) -> dict[str, list[epath.Path]]:
    """Returns the files of each name; a name without a file has none."""
    return {name: sorted(folder.glob(name)) for name in self.names[part]}

  def has_file(self, name: str, part: str) -> bool:
    """Returns whether a split has a file of this name."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in self.names[part])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tfds:
  """A form of a data set: the records of a builder of TFDS.

  Attributes:
    builder: Name of the builder, with its configuration.
    names: TFDS's name of each split. Without "dev", a tenth of "train" is the
      development set.
    read: Function that makes a question of a record, a tree of numpy values.
  """

  builder: str
  names: Mapping[str, str]
  read: Callable[[Mapping[str, Any]], Question]
  sizes: Mapping[str, int] | None = None


def parts_of(form: Files | Tfds, split: str) -> list[str]:
  """Returns the published parts that have the questions of a split."""
  if "dev" in form.names:
    return ["train", "dev"] if split == TRAIN_AND_DEV else [split]
  return [split if split == "test" else "train"]
