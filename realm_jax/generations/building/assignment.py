"""What the workers build now, as their first one says.

The first worker chooses the checkpoint, the version of the corpus and the base
of a partial refresh, and writes them to `generations/assignment.json`. The
others look there and nowhere else, so that all embed the same generation.
"""

import dataclasses

from absl import logging
from etils import epath

from realm_jax.files.json_file import whole_text_file
from realm_jax.files.object_store import listing
from realm_jax.files.object_store.remote import read_text
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests


@dataclasses.dataclass(frozen=True)
class Assignment:
  """A generation that workers build together.

  Attributes:
    step: Checkpoint step of the generation.
    identity: Checksum of what determines its vectors: its folder's name.
    num_workers: Number of workers that share it.
    corpus_version: Version of the corpus that is embedded.
    corpus_fingerprint: Fingerprint of that version.
    base: Step of the generation that a partial refresh copies vectors from;
      None where every block is embedded.
  """

  step: int
  identity: str
  num_workers: int
  corpus_version: int
  corpus_fingerprint: str
  base: int | None


def write(
  generations_dir: epath.PathLike, assignment: Assignment | None
) -> None:
  """Tells the other workers what to build; None tells them to wait."""
  values = {} if assignment is None else dataclasses.asdict(assignment)
  path = epath.Path(generations_dir) / layout.ASSIGNMENT
  with whole_text_file(path) as file:
    file.write(manifests.to_checked_json(values))


class AssignmentReader:
  """Reads the assignment again only after it has changed."""

  def __init__(self, generations_dir: epath.PathLike):
    self._path = epath.Path(generations_dir) / layout.ASSIGNMENT
    self._version: str | None = None
    self._last: Assignment | None = None

  def read(self) -> Assignment | None:
    """Returns what to build now; None where there is nothing."""
    version = listing.version_of(self._path)
    if version == self._version:
      return self._last
    try:
      values = manifests.from_checked_json(read_text(self._path))
      self._last = Assignment(**values) if values else None
    except FileNotFoundError:
      self._last = None
    except (ValueError, KeyError, TypeError) as error:
      logging.warning("%s is not an assignment: %r", self._path, error)
      self._last = None
    self._version = version
    return self._last
