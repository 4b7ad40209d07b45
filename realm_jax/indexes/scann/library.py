"""The library ScaNN, imported when it is used, and its version."""

import enum
import importlib
import importlib.abc
import importlib.metadata
import sys
import threading
from collections.abc import Iterable
from types import ModuleType

from realm_jax.indexes.protocol import LibraryError

# The version whose private file formats `files.py` writes.
FORMATS_VERSION = "1.4.2"


def library() -> ModuleType:
  """Returns ScaNN's Python module.

  Raises:
    LibraryError: It is not installed.
  """
  try:
    with _WithoutTensorFlow():
      from scann.scann_ops.py import scann_ops_pybind
  except ImportError as error:
    raise LibraryError(
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


def reads_our_formats() -> bool:
  """Returns whether the installed version reads the files of our builder.

  Raises:
    LibraryError: ScaNN is not installed.
  """
  library()
  return installed_version() == FORMATS_VERSION


class _WithoutTensorFlow(importlib.abc.MetaPathFinder):
  """Makes imports of TensorFlow fail in this thread, as if it were missing.

  ScaNN's operations for TensorFlow are not used, and without them it is
  imported in a twentieth of the time. Modules imported earlier stay.
  """

  def __enter__(self) -> None:
    self._thread = threading.get_ident()
    sys.meta_path.insert(0, self)

  def __exit__(self, *error: object) -> None:
    sys.meta_path.remove(self)

  def find_spec(
    self,
    fullname: str,
    path: Iterable[str] | None,
    target: ModuleType | None = None,
  ) -> None:
    if fullname == "tensorflow" and threading.get_ident() == self._thread:
      raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
