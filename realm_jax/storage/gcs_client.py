"""gcsfs's client, with what long runs of several processes need of it."""

import os
from typing import Any

import aiohttp
from gcsfs.core import GCSFileSystem

# Environment variable: seconds without an answer after which a request is
# repeated.
TIMEOUT_VARIABLE = "REALM_JAX_REQUEST_TIMEOUT_SECONDS"
_TIMEOUT_SECONDS = 60.0


class GcsClient(GCSFileSystem):
  """A client that sees what other processes write, and never waits for ever.

  By default gcsfs keeps every listing for the life of the process, so that a
  trainer would see no new snapshot, and waits without limit for an answer.
  The class is the one that does not ask for the bucket's kind first, which not
  every account may know: buckets of the kind "zonal" need the other.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    seconds = float(os.environ.get(TIMEOUT_VARIABLE, _TIMEOUT_SECONDS))
    kwargs.setdefault("use_listings_cache", False)
    # gcsfs repeats a request after timeouts of this kind alone.
    kwargs.setdefault(
      "requests_timeout",
      aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds),
    )
    if os.environ.get("STORAGE_EMULATOR_HOST"):
      kwargs.setdefault("token", "anon")
    super().__init__(*args, **kwargs)

  def read_generation(self, path: str) -> tuple[bytes, str]:
    """Returns what an object holds, and its generation; b"", "0" without one.

    The generation is Google's: it changes with each write of the object.
    """
    bucket, name, _ = self.split_path(path)
    try:
      answer: Any = self.call("GET", "b/{}/o/{}", bucket, name, alt="media")
    except FileNotFoundError:
      return b"", "0"
    headers, content = answer
    return content, headers["x-goog-generation"]

  def write_generation(
    self, path: str, content: bytes, *, replaces: str
  ) -> str | None:
    """Writes an object if its generation is the one that this one `replaces`.

    Returns the new generation, or None if the object has another one by now: by
    another process, or by this one if an answer was lost.
    """
    bucket, name, _ = self.split_path(path)
    try:
      written: Any = self.call(
        "POST",
        f"{self._location}/upload/storage/v1/b/{{}}/o",
        bucket,
        uploadType="media",
        name=name,
        ifGenerationMatch=replaces,
        headers={"Content-Type": "application/octet-stream"},
        data=content,
        json_out=True,
      )
    except FileExistsError:  # gcsfs's error for a precondition that failed.
      return None
    return written["generation"]
