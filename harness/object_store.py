"""An object store on loopback that counts requests and fails on demand.

It implements Google Cloud Storage's JSON protocol with `gcp-storage-emulator`,
keeps objects in memory, and runs in threads of this process.
"""

import contextlib
import dataclasses
import functools
import io
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from etils import epath
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

_OBJECT = re.compile(r"/b/([^/]+)/o/(.+)$")


@dataclasses.dataclass(frozen=True)
class StoreFault:
  """A fault that happens to the next matching requests.

  Attributes:
    kind: "refuse" responds with `status` and does nothing; "lose answer" does
      what was requested, but responds with `status`; "cut" stops in the middle
      of the response; "hang" waits for `seconds`, then closes the connection.
    match: Regular expression to search for in a request, which is its method, a
      space, the path and the query.
    times: Number of requests with the fault.
    status: HTTP status of the response.
    seconds: Duration of a hanging request, in seconds.
  """

  kind: str
  match: str
  times: int = 1
  status: int = 503
  seconds: float = 3600.0


class ObjectStore:
  """An object store that serves one bucket during a `with` block.

  Attributes:
    environment: Environment variables that make gcsfs, epath and tensorstore
      use it.
  """

  _BUCKET = "bucket"

  def __init__(self) -> None:
    self.lock = threading.Lock()
    self.storage = Storage(use_memory_fs=True)
    # The emulator saves its state, which takes longer with every object.
    self.storage._write_config_to_file = lambda: None
    create_bucket(self._BUCKET, self.storage)
    # Otherwise removed objects stay in memory for a week.
    policy = {"retentionDurationSeconds": 0}
    self.storage.buckets[self._BUCKET]["softDeletePolicy"] = policy
    # Responses to the last requests of uploads, by URL of the upload.
    self.finished_uploads: dict[str, bytes] = {}
    self._requests: list[str] = []
    self._faults: list[StoreFault] = []
    self._happened: list[int] = []
    handler = functools.partial(_Handler, self)
    self._server = _Server(("127.0.0.1", 0), handler)
    url = f"http://127.0.0.1:{self._server.server_port}"
    self.environment: Mapping[str, str] = {
      "EPATH_USE_TF": "false",
      "STORAGE_EMULATOR_HOST": url,
      "TENSORSTORE_GCS_HTTP_URL": url,
      # Clients do not search for the credentials of Google's machines.
      "NO_GCE_CHECK": "true",
    }

  def __enter__(self) -> "ObjectStore":
    # The emulator logs an error for every missing object that is requested.
    logging.getLogger("api").setLevel(logging.CRITICAL)
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._server.shutdown()
    self._server.server_close()

  def path(self, name: str) -> str:
    """Returns the `gs://` path of an object or a folder."""
    return f"gs://{self._BUCKET}/{name}"

  @contextlib.contextmanager
  def counted(self) -> Iterator[list[str]]:
    """Yields a list, which has the block's requests once the block has ended.

    A request is its method, a space, the path and the query.
    """
    before = len(self._requests)
    counted: list[str] = []
    yield counted
    counted += self._requests[before:]

  def inject(self, *faults: StoreFault) -> None:
    """Replaces all pending faults; without arguments, the store is repaired."""
    with self.lock:
      self._faults, self._happened = [*faults], [0] * len(faults)

  def happened(self) -> list[int]:
    """Returns the number of times that each fault has happened."""
    return [*self._happened]

  def note(self, request: str) -> StoreFault | None:
    """Logs a request; returns the fault that happens to it, if any."""
    with self.lock:
      self._requests.append(request)
      for i, fault in enumerate(self._faults):
        if self._happened[i] < fault.times and re.search(fault.match, request):
          self._happened[i] += 1
          return fault
    return None

  def names(self, prefix: str = "") -> list[str]:
    """Returns the names of the objects with a prefix."""
    with self.lock:
      listed, _ = self.storage.get_file_list(self._BUCKET, prefix)
    return [item["name"] for item in listed]

  def read(self, name: str) -> bytes:
    """Returns the content of an object."""
    with self.lock:
      return self.storage.get_file(self._BUCKET, name)

  def write(self, name: str, content: bytes) -> None:
    """Writes an object, by an ordinary request."""
    epath.Path(self.path(name)).write_bytes(content)

  def remove(self, name: str) -> None:
    """Removes an object, as if it was lost."""
    with self.lock:
      self.storage.delete_file(self._BUCKET, name)


class _Handler(RequestHandler):
  """Handles a request, or the fault that happens to it."""

  def __init__(self, store: ObjectStore, *args: Any):
    self._store = store
    super().__init__(store.storage, *args)

  def log_message(self, format: str, *args: Any) -> None:
    """Does not log requests."""

  def _serve(self) -> None:
    # Reads the whole body and sends the response without the lock, so a client
    # that is stopped in between does not block the others.
    if size := self.headers.get("Content-Length"):
      self.rfile = io.BytesIO(self.rfile.read(int(size)))
    fault = self._store.note(f"{self.command} {unquote(self.path)}")
    kind = fault.kind if fault else "none"
    if fault and kind == "hang":
      time.sleep(fault.seconds)
      self.close_connection = True
      return
    if fault and kind == "refuse":
      self._refuse(fault.status)
      return
    if self.command == "DELETE" and "upload_id=" in self.path:
      # The emulator does not support canceled uploads.
      self._refuse(499)
      return
    written = self._handle()
    if fault and kind == "lose answer":
      self._refuse(fault.status)
    elif kind == "cut":
      self.wfile.write(written[: len(written) // 2])
      self.close_connection = True
    else:
      self.wfile.write(written)

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

  def _handle(self) -> bytes:
    """Returns the emulator's response."""
    store, generation = self._store, None
    is_upload = self.command == "PUT" and "upload_id=" in self.path
    with store.lock:
      # The emulator forgets finished uploads. If the response was lost and the
      # client tries again, it would get a 404.
      if is_upload and self.path in store.finished_uploads:
        return store.finished_uploads[self.path]
      answer, self.wfile = self.wfile, cast(Any, io.BytesIO())
      if self._is_wanted_generation():
        Router(self).handle(self.command)
      else:  # The emulator does not support preconditions.
        self._refuse(412)
      written = cast(io.BytesIO, self.wfile).getvalue()
      self.wfile = answer
      if is_upload and b" 200 " in written.partition(b"\r\n")[0]:
        store.finished_uploads[self.path] = written
      match = _OBJECT.search(urlsplit(self.path).path)
      if match and self.command == "GET":
        bucket, name = map(unquote, match.groups())
        objects = store.storage.objects.get(bucket, {})
        generation = objects.get(name, {}).get("generation")
    if generation is not None:
      # tensorstore reads the generation from a header, which the emulator does
      # not send, and sends it back when it overwrites the object.
      status, end, rest = written.partition(b"\r\n")
      header = f"x-goog-generation: {generation}".encode()
      written = status + end + header + end + rest
    return written

  def _is_wanted_generation(self) -> bool:
    """Returns whether the object has the generation that a write expects."""
    url = urlsplit(self.path)
    query, bucket = parse_qs(url.query), url.path.split("/")[-2]
    if "ifGenerationMatch" not in query or "name" not in query:
      return True
    objects = self._store.storage.objects.get(bucket, {})
    generation = objects.get(query["name"][0], {}).get("generation", "0")
    return query["ifGenerationMatch"] == [generation]

  def _refuse(self, status: int) -> None:
    error = {"code": status, "message": "a fault that was asked for"}
    body = json.dumps({"error": error}).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)


class _Server(ThreadingHTTPServer):
  daemon_threads = True
  request_queue_size = 128

  def handle_error(self, request: Any, client_address: Any) -> None:
    """Does not log errors of clients that were killed."""
