"""Writers of a run's metrics: TensorBoard, Weights & Biases, or your own.

    METRIC_WRITERS = ["tensorboard", "wandb", @my_trackers.Tracker()]

Your own tracker is a dataclass that implements `Tracker`, in a module listed
with `--modules`.
"""

import functools
import itertools
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import google_crc32c
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.paths import is_remote
from realm_jax.training.metric_rows import Records

# Numbers of this process's event files. Several files may start in the same
# second, and readers order files by name.
_event_files = itertools.count()


class MetricWriter(Protocol):
  """Writes the metrics of each step, on process 0, whose loop waits for it.

  A resumed run repeats the steps after its checkpoint. `flush` is called at
  most once a second; if it raises an `OSError`, it is called again later.
  """

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None: ...
  def flush(self) -> None: ...
  def close(self) -> None: ...


@runtime_checkable
class Tracker(Protocol):
  """Settings of a writer; `open` is called when a run starts or resumes."""

  def open(self, model_dir: epath.Path) -> MetricWriter: ...


class EventFile(Records):
  """A TensorBoard event file, a new one whenever the run starts or resumes.

  Object stores cannot append to a file, so each flush uploads another one.
  """

  def __init__(self, model_dir: epath.Path):
    def path() -> epath.Path:
      return model_dir / (
        f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}."
        f"{os.getpid()}.{next(_event_files):06d}"
      )

    super().__init__(
      path if is_remote(model_dir) else functools.cache(path),
      header=_event(file_version="brain.Event:2"),
    )

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=n, simple_value=x) for n, x in scalars.items()]
    self.add(_event(step=step, summary=Summary(value=values)))

  def close(self) -> None:
    pass


def _event(**fields: Any) -> bytes:
  """Returns the record of an event, a protocol buffer without Python types.

  A record is the length of its data, the data, and a checksum of each.
  tensorboard's own `RecordWriter` computes the checksums in Python: for 25
  metrics it takes 0.23 ms a step, and this takes 0.07 ms.
  """
  # Imported here, because only the extra `train` installs it.
  from tensorboard.compat.proto.event_pb2 import Event

  data = Event(wall_time=time.time(), **fields).SerializeToString()
  length = struct.pack("<Q", len(data))
  return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
  """Returns the masked CRC-32C of TFRecords."""
  crc = google_crc32c.value(data)
  rotated = crc >> 15 | crc << 17
  return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


class WandbRun:
  """A run of Weights & Biases; its environment variables set project and mode.

  MODEL_DIR/wandb_id has the id, so that a resumed run continues it. If steps
  are repeated, Weights & Biases keeps their first metrics.
  """

  def __init__(self, model_dir: epath.Path):
    try:
      import wandb
    except ImportError as error:
      raise RealmError(
        f"METRIC_WRITERS names wandb, which cannot be imported here ({error}); "
        "`pip install wandb`, or leave it out"
      ) from error
    path = model_dir / "wandb_id"
    if not path.exists():
      with atomic_text_file(path) as file:
        file.write(secrets.token_hex(8))
    try:
      self._run = wandb.init(
        id=path.read_text(), name=model_dir.name, resume="allow"
      )
    except wandb.Error as error:
      raise RealmError(
        f"Weights & Biases cannot begin a run: {error}; log in (`wandb login`) "
        "or set WANDB_MODE=offline"
      ) from error

  def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
    self._run.log({**scalars}, step=step)

  def flush(self) -> None:
    """Does nothing: wandb's own process writes and sends."""

  def close(self) -> None:
    self._run.finish()


_BY_NAME: Mapping[str, Callable[[epath.Path], MetricWriter]] = {
  "tensorboard": EventFile,
  "wandb": WandbRun,
}


def open_writers(
  trackers: Sequence[str | Tracker], model_dir: epath.PathLike
) -> list[MetricWriter]:
  """Opens writers by name, or by the settings of a `Tracker`."""
  return [
    (_BY_NAME[one] if isinstance(one, str) else one.open)(epath.Path(model_dir))
    for one in trackers
  ]
