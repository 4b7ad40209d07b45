"""TensorBoard's events of a run.

On an object store, where nothing can be appended, events are written to a
temporary folder; each `flush` uploads them and begins another file.
"""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote, upload
from realm_jax.files.whole.appended_file import AppendedFile

_VERSION = "brain.Event:2"
# Files that this process has begun, which may be several in a second. Readers
# go by the order of the names.
_numbers = itertools.count()


class EventFiles:
  """Writes the events of a run to its MODEL_DIR.

  All methods raise OSError, or an error of the object store, where something
  cannot be written yet; it is tried again with the next flush.
  """

  def __init__(self, model_dir: epath.PathLike):
    self._model_dir = epath.Path(model_dir)
    self._scratch = ScratchDirectory() if is_remote(model_dir) else None
    self._folder = self._scratch.path if self._scratch else Path(model_dir)
    self._writer: RecordWriter | None = None

  def write(self, step: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics of a step."""
    if self._writer is None:
      name = (
        f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}."
        f"{os.getpid()}.{next(_numbers):06d}"
      )
      self._writer = RecordWriter(AppendedFile(self._folder / name))
      self._add(file_version=_VERSION)
    values = [
      Summary.Value(tag=name, simple_value=value)
      for name, value in metrics.items()
    ]
    self._add(step=step, summary=Summary(value=values))

  def _add(self, **fields: Any) -> None:
    """Adds an event, a protocol buffer, which has no type of Python's."""
    assert self._writer is not None
    event = Event(wall_time=time.time(), **fields)
    self._writer.write(event.SerializeToString())

  def flush(self) -> None:
    """Makes all events visible to readers."""
    if self._writer is not None:
      self._writer.flush()
    if self._scratch is None:
      return
    if self._writer is not None:
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
