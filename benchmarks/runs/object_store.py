"""Starts an object store as a process, counts requests and injects faults."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from benchmarks.runs.jobs import PROJECT_DIR


@dataclasses.dataclass(frozen=True)
class StoreFault:
  """What happens to the next requests that match.

  Attributes:
    kind: "refuse" answers with `status` and does nothing, "lose answer" does
      what is asked and answers with `status`, "cut" ends the answer in its
      middle, and "hang" answers nothing for `seconds` and then closes.
    match: Regular expression, looked for in a request: its method, a space, the
      path and the query.
    times: Number of requests to which it happens.
    status: HTTP status of the answer.
    seconds: Seconds that a request hangs.
  """

  kind: str
  match: str
  times: int = 1
  status: int = 503
  seconds: float = 3600.0


class ObjectStore:
  """An object store that runs as a process while a `with` block does.

  What its own methods ask of it is neither counted nor disturbed.

  Args:
    bucket: Bucket that it has from its start, of three letters or more.

  Attributes:
    url: Address of the server.
    environment: Variables that lead gcsfs, epath and tensorstore to it.
  """

  def __init__(self, bucket: str = "bucket"):
    self.bucket = bucket
    self.url = ""

  def __enter__(self) -> "ObjectStore":
    module = "benchmarks.runs.object_store_server"
    self._process = subprocess.Popen(
      [sys.executable, "-m", module, f"--bucket={self.bucket}"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env={**os.environ, "PYTHONPATH": str(PROJECT_DIR)},
    )
    assert self._process.stdout is not None
    port = self._process.stdout.readline().decode().strip()
    if not port:
      raise RuntimeError("the object store did not start")
    self.url = f"http://127.0.0.1:{port}"
    return self

  def __exit__(self, *exception: object) -> None:
    self._process.kill()
    # Closes its pipes, too.
    self._process.communicate()

  @property
  def environment(self) -> Mapping[str, str]:
    return {
      "EPATH_USE_TF": "false",
      "STORAGE_EMULATOR_HOST": self.url,
      "TENSORSTORE_GCS_HTTP_URL": self.url,
      # Nobody looks for credentials of Google's machines.
      "NO_GCE_CHECK": "true",
    }

  def path(self, name: str) -> str:
    """Returns the `gs://` path of an object or a folder."""
    return f"gs://{self.bucket}/{name}"

  def requests(self) -> list[str]:
    """Returns the requests so far: method, path and query."""
    return self._call("GET", "/-/requests")

  @contextlib.contextmanager
  def counted(self) -> Iterator[list[str]]:
    """Yields a list that has the requests of the block when it has ended."""
    before = len(self.requests())
    counted: list[str] = []
    yield counted
    counted += self.requests()[before:]

  def inject(self, *faults: StoreFault) -> None:
    """Replaces the faults that are to happen; none repairs the store."""
    self._call("POST", "/-/faults", [dataclasses.asdict(f) for f in faults])

  def happened(self) -> list[int]:
    """Returns how often each of the faults has happened."""
    return [fault["happened"] for fault in self._call("GET", "/-/faults")]

  def names(self, prefix: str = "") -> list[str]:
    """Returns the names of the objects under a prefix."""
    query = urlencode({"prefix": prefix})
    listed = self._call("GET", f"/storage/v1/b/{self.bucket}/o?{query}")
    return [item["name"] for item in listed["items"]]

  def read(self, name: str) -> bytes:
    """Returns what an object holds."""
    with self._open("GET", self._object(name) + "?alt=media") as answer:
      return answer.read()

  def write(self, name: str, content: bytes) -> None:
    """Writes an object."""
    query = urlencode({"uploadType": "media", "name": name})
    path = f"/upload/storage/v1/b/{self.bucket}/o?{query}"
    self._open("POST", path, content).close()

  def write_folder(self, prefix: str, folder: Path) -> None:
    """Writes the files of a folder below a prefix."""
    for path in sorted(folder.rglob("*")):
      if path.is_file():
        name = path.relative_to(folder).as_posix()
        self.write(f"{prefix}/{name}", path.read_bytes())

  def remove(self, name: str) -> None:
    """Loses an object."""
    self._open("DELETE", self._object(name)).close()

  def _object(self, name: str) -> str:
    return f"/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}"

  def _call(self, method: str, path: str, value: Any = None) -> Any:
    body = None if value is None else json.dumps(value).encode()
    with self._open(method, path, body) as answer:
      return json.load(answer)

  def _open(self, method: str, path: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(self.url + path, body, method=method)
    request.add_header("Content-Type", "application/octet-stream")
    request.add_header("X-Aside", "yes")
    return urllib.request.urlopen(request)
