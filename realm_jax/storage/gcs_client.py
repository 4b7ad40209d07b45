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
  trainer would see no new generation, and waits without limit for an answer.
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
