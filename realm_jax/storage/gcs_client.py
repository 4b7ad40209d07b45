"""A client of gcsfs, adapted for long runs with several processes."""

import os
from typing import Any

import aiohttp
from gcsfs.core import GCSFileSystem

# Environment variable for the timeout in seconds after which a request is
# repeated.
TIMEOUT_VARIABLE = "REALM_JAX_REQUEST_TIMEOUT_SECONDS"
_TIMEOUT_SECONDS = 60.0


class GcsClient(GCSFileSystem):
  """A client without cached listings, and with timeouts.

  By default gcsfs caches every listing for the life of the process, so a
  trainer would see no new snapshots, and waits for responses without limit.
  This class does not request the bucket's kind first, which needs permissions
  that an account may lack; "zonal" buckets would need the other class.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    seconds = float(os.environ.get(TIMEOUT_VARIABLE, _TIMEOUT_SECONDS))
    kwargs.setdefault("use_listings_cache", False)
    # gcsfs repeats a request only after timeouts of this kind.
    kwargs.setdefault(
      "requests_timeout",
      aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds),
    )
    if os.environ.get("STORAGE_EMULATOR_HOST"):
      kwargs.setdefault("token", "anon")
    super().__init__(*args, **kwargs)

  def read_generation(self, path: str) -> tuple[bytes, str]:
    """Returns an object's contents and generation; b"", "0" if it is missing.

    The generation, assigned by Google's store, changes with each write.
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
    """Writes an object if its current generation is `replaces`.

    Returns the new generation, or None if the object has another generation,
    written by another process, or by this one if a response was lost.
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
