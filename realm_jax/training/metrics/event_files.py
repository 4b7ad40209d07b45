"""TensorBoard's events of a run.

TensorFlow writes them with a client of its own, which is not the one of the
other files. So those of an object store are written to a temporary folder, and
each `flush` uploads them and begins another file.
"""

from collections.abc import Mapping

from clu import metric_writers
from etils import epath

from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote, upload


class EventFiles:
  """Writes the events of a run to its MODEL_DIR."""

  def __init__(self, model_dir: epath.PathLike):
    self._model_dir = epath.Path(model_dir)
    self._scratch = ScratchDirectory() if is_remote(model_dir) else None
    self._where = str(self._scratch.path if self._scratch else model_dir)
    self._writer: metric_writers.SummaryWriter | None = None

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of a step."""
    if self._writer is None:
      self._writer = metric_writers.SummaryWriter(self._where)
    self._writer.write_scalars(step, metrics)

  def flush(self) -> None:
    """Makes all events visible to readers."""
    if self._writer is None:
      return
    if self._scratch is None:
      self._writer.flush()
      return
    self._writer.close()
    self._writer = None
    for path in sorted(self._scratch.path.iterdir()):
      upload(path, self._model_dir / path.name)
      path.unlink()

  def close(self) -> None:
    """Flushes, and ends the writing."""
    try:
      self.flush()
    finally:
      if self._writer is not None:
        self._writer.close()
      if self._scratch is not None:
        self._scratch.close()
