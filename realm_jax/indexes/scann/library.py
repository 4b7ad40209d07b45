"""ScaNN itself, imported when it is asked for."""

import contextlib
import importlib.abc
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from realm_jax.indexes.protocol import MissingLibraryError


def library() -> Any:
  """ScaNN.

  Raises:
    MissingLibraryError: it is not installed.
  """
  try:
    with _without_tensorflow():
      from scann.scann_ops.py import scann_ops_pybind
  except ImportError as error:
    raise MissingLibraryError(
      f"the index `scann` needs the library scann, which cannot be imported "
      f"here ({error}); `pip install scann`, or choose the index `exact`"
    ) from error
  return scann_ops_pybind


def messages() -> Any:
  """Its messages of protobuf: `partitioner`, `centers` and `scann`."""
  library()
  from scann.partitioning import partitioner_pb2
  from scann.proto import centers_pb2, scann_pb2

  return types.SimpleNamespace(
    partitioner=partitioner_pb2, centers=centers_pb2, scann=scann_pb2
  )


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
  """Has ScaNN do without TensorFlow, as it does where there is none.

  Its operations for TensorFlow are not used here, and all else of ScaNN is
  imported in a twentieth of the time. What is imported already stays.
  """
  absent = _Absent("tensorflow", thread=threading.get_ident())
  sys.meta_path.insert(0, absent)
  try:
    yield
  finally:
    sys.meta_path.remove(absent)


class _Absent(importlib.abc.MetaPathFinder):
  """Finds that a module is not there, for one thread."""

  def __init__(self, name: str, *, thread: int):
    self._name, self._thread = name, thread

  def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
    if fullname == self._name and threading.get_ident() == self._thread:
      raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
