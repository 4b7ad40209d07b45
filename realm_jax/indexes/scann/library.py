"""The library ScaNN, imported when it is used, and its version."""

import contextlib
import enum
import importlib
import importlib.abc
import importlib.metadata
import sys
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType

from realm_jax.indexes.protocol import MissingLibraryError

# The version whose private file formats `files.py` writes.
FORMATS_VERSION = "1.4.2"


def library() -> ModuleType:
  """Returns ScaNN's Python module.

  Raises:
    MissingLibraryError: It is not installed.
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


def proto(name: str) -> ModuleType:
  """Returns a module of ScaNN's protocol buffers, as `proto.scann_pb2`."""
  library()
  return importlib.import_module(f"scann.{name}")


def reorder_type(name: str) -> enum.Enum:
  """Returns ScaNN's constant for the type of reordered vectors."""
  return library().scann_builder.ReorderType[name.upper()]


def installed_version() -> str:
  """Returns the version of ScaNN that is installed."""
  return importlib.metadata.version("scann")


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
  """Makes imports of TensorFlow fail, as where it is not installed.

  ScaNN's operations for TensorFlow are not used, and without them it is
  imported in a twentieth of the time. Modules imported earlier stay.
  """
  absent = _Absent("tensorflow", thread=threading.get_ident())
  sys.meta_path.insert(0, absent)
  try:
    yield
  finally:
    sys.meta_path.remove(absent)


class _Absent(importlib.abc.MetaPathFinder):
  """Makes imports of one module fail, in one thread."""

  def __init__(self, name: str, *, thread: int):
    self._name, self._thread = name, thread

  def find_spec(
    self,
    fullname: str,
    path: Iterable[str] | None,
    target: ModuleType | None = None,
  ) -> None:
    if fullname == self._name and threading.get_ident() == self._thread:
      raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
