"""Manifests of the published generations, each read once."""

import threading

from etils import epath

from realm_jax.files.object_store import listing
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError, Manifest


class PublishedGenerations:
  """The published generations of a directory, for one who looks often.

  A look takes one request to the storage, and one for each generation. What is
  read of a manifest is kept until the manifest changes. Several threads may
  look at the same time.
  """

  def __init__(self, generations_dir: epath.PathLike):
    self._directory = epath.Path(generations_dir)
    self._lock = threading.Lock()
    # The version of a manifest, and the manifest or why it cannot be read.
    self._read: dict[int, tuple[str, Manifest | GenerationError]] = {}

  def versions(self) -> dict[int, str]:
    """Returns a text for each published step that changes with its manifest."""
    steps = layout.all_steps(self._directory)
    versions = {step: self.version(step) for step in steps}
    return {step: version for step, version in versions.items() if version}

  def version(self, step: int) -> str | None:
    """Returns the same text for one step; None where it is not published."""
    path = layout.path_of(self._directory, step) / layout.MANIFEST
    return listing.version_of(path)

  def manifest(self, step: int, version: str) -> Manifest:
    """Returns the manifest of a version that `versions` has named.

    Raises:
      GenerationError: It cannot be read, or is not valid.
    """
    with self._lock:
      if (kept := self._read.get(step)) is None or kept[0] != version:
        path = layout.path_of(self._directory, step)
        try:
          kept = version, manifests.read(path)
        except GenerationError as error:
          kept = version, error
        self._read[step] = kept
    if isinstance(kept[1], GenerationError):
      raise type(kept[1])(str(kept[1])) from kept[1]
    return kept[1]
