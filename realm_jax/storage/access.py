"""Checks access to storage before any work, and explains storage errors.

If a bucket is missing, or the account may not use it, gcsfs reports only the
server's response. The errors here say what to do.
"""

import contextlib
import os
import secrets
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import fsspec
from etils import epath

from realm_jax.errors import ExitCode, RealmError
from realm_jax.storage.paths import is_remote

_GOOGLE = ("gs://", "gcs://")
# Libraries whose errors gcsfs raises for failed requests.
_LIBRARIES = ("aiohttp", "gcsfs", "google", "requests")
# Prefixes of tensorstore's errors, which have no types.
_TENSORSTORE_OUTAGES = ("UNAVAILABLE:", "DEADLINE_EXCEEDED:")
_LOG_IN = (
  "log in (gcloud auth application-default login), or give the account the "
  "role roles/storage.objectUser of the bucket"
)


class StoreAccessError(RealmError):
  """An object store, a bucket or a directory cannot be used."""


class StoreOutageError(StoreAccessError):
  """An object store does not respond properly."""

  exit_code = ExitCode.STORE_OUTAGE


def require_readable(*paths: epath.PathLike | None) -> None:
  """Checks the buckets of the paths that are on an object store.

  Raises:
    StoreAccessError: A bucket is missing or may not be read, or the store
      cannot be reached.
  """
  remote = [str(path) for path in paths if path is not None and is_remote(path)]
  for bucket, path in {"/".join(p.split("/")[:3]): p for p in remote}.items():
    # One name is enough; only Google's store supports the limit.
    only_one = {"max_results": 1} if path.startswith(_GOOGLE) else {}
    with _explaining(f"{path} cannot be read"):
      client, name = fsspec.url_to_fs(bucket)
      try:
        client.ls(name, **only_one)
      except FileNotFoundError as error:
        raise StoreAccessError(
          f"{path}: there is no bucket {bucket}, or this account may not see "
          "it; correct the name, or make it (gcloud storage buckets create "
          f"{bucket})"
        ) from error


def require_writable(*directories: epath.PathLike | None) -> None:
  """Checks directories by writing a file to each and removing it.

  Raises:
    StoreAccessError: As in `require_readable`; or files cannot be written or
      removed, or a file has the name of a directory.
  """
  require_readable(*directories)
  for directory in filter(None, directories):
    if not is_remote(directory):
      path = Path(directory).absolute()
      # The nearest existing parent; missing directories are made later.
      nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
      try:
        tempfile.TemporaryDirectory(prefix=".probe-", dir=nearest).cleanup()
      except OSError as error:
        raise StoreAccessError(
          f"{directory} cannot be written: {nearest} takes no new files "
          f"({error.strerror}); name another directory"
        ) from error
      continue
    probe = f"{str(directory).rstrip('/')}/.probe-{secrets.token_hex(8)}"
    with _explaining(f"{directory}: objects there cannot be written"):
      client, name = fsspec.url_to_fs(probe)
      client.pipe_file(name, b"This object may be removed.")
    # A removal is repeated if its response was lost.
    with (
      _explaining(f"{directory}: objects there cannot be removed"),
      contextlib.suppress(FileNotFoundError),
    ):
      client.rm_file(name)


def explained(error: BaseException) -> StoreAccessError | None:
  """Explains an error of an object store's client; None for other errors."""
  text, module = str(error), type(error).__module__.partition(".")[0]
  short = textwrap.shorten(text, 200, placeholder="…")
  code = getattr(error, "code", None)
  if code in (401, 403) or text.startswith("Forbidden:"):
    return StoreAccessError(
      f"the object store refuses access ({short}): {_LOG_IN}"
    )
  if (
    module in _LIBRARIES
    or (type(error) is ValueError and text.startswith(_TENSORSTORE_OUTAGES))
    or type(error) in (ConnectionRefusedError, ConnectionResetError)
  ):
    return StoreOutageError(
      f"the object store does not answer as it should ({short}, "
      f"{type(error).__name__}); what was written is whole: run the command "
      "again, once the store can be reached"
    )
  return None


def exit_code_of(error: BaseException) -> int:
  """Returns the exit code for an error of a user: its own, or its cause's."""
  cause: BaseException | None = error
  while cause is not None:
    code = getattr(explained(cause) or cause, "exit_code", None)
    if code is not None:
      return code
    cause = cause.__cause__
  return ExitCode.USER_ERROR


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
  """Explains the errors of an object store's client."""
  try:
    yield
  except Exception as error:
    if isinstance(error, ImportError):
      raise StoreAccessError(f"{what}: {error}") from error
    if (reason := explained(error)) is None:
      raise
    raise type(reason)(f"{what}: {reason}") from error
