"""An object store on loopback that counts its requests and fails on demand.

It speaks Google Cloud Storage's JSON protocol, by `gcp-storage-emulator`, with
the objects in memory, and serves in threads of this process.
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
  """An object store that serves one bucket while a `with` block runs.

  Attributes:
    environment: Variables that lead gcsfs, epath and tensorstore to it.
  """

  _BUCKET = "bucket"

  def __init__(self) -> None:
    self.lock = threading.Lock()
    self.storage = Storage(use_memory_fs=True)
    # What it writes for its next start takes longer with every object.
    self.storage._write_config_to_file = lambda: None
    create_bucket(self._BUCKET, self.storage)
    # Removed objects would stay in memory for a week.
    policy = {"retentionDurationSeconds": 0}
    self.storage.buckets[self._BUCKET]["softDeletePolicy"] = policy
    # Answers to the last requests of uploads, by the uploads' addresses.
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
      # Nobody looks for credentials of Google's machines.
      "NO_GCE_CHECK": "true",
    }

  def __enter__(self) -> "ObjectStore":
    # The emulator reports each object that is asked for and not there.
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
    """Yields a list that has the requests of the block when it has ended.

    A request is its method, a space, the path and the query.
    """
    before = len(self._requests)
    counted: list[str] = []
    yield counted
    counted += self._requests[before:]

  def inject(self, *faults: StoreFault) -> None:
    """Replaces the faults that are to happen; none repairs the store."""
    with self.lock:
      self._faults, self._happened = [*faults], [0] * len(faults)

  def happened(self) -> list[int]:
    """Returns how often each of the faults has happened."""
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
    """Returns the names of the objects under a prefix."""
    with self.lock:
      listed, _ = self.storage.get_file_list(self._BUCKET, prefix)
    return [item["name"] for item in listed]

  def read(self, name: str) -> bytes:
    """Returns what an object holds."""
    with self.lock:
      return self.storage.get_file(self._BUCKET, name)

  def write(self, name: str, content: bytes) -> None:
    """Writes an object, by a request as any other."""
    epath.Path(self.path(name)).write_bytes(content)

  def remove(self, name: str) -> None:
    """Loses an object."""
    with self.lock:
      self.storage.delete_file(self._BUCKET, name)


class _Handler(RequestHandler):
  """Answers one request, unless a fault happens to it."""

  def __init__(self, store: ObjectStore, *args: Any):
    self._store = store
    super().__init__(store.storage, *args)

  def log_message(self, format: str, *args: Any) -> None:
    """Prints nothing."""

  def _serve(self) -> None:
    # The whole body is read, and the answer sent, without the lock: a client
    # that is stopped in between must not stop the others.
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
      # The emulator does not know uploads that are given up.
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
    """Returns the emulator's answer."""
    store, generation = self._store, None
    is_upload = self.command == "PUT" and "upload_id=" in self.path
    with store.lock:
      # The emulator knows no preconditions.
      if not self._is_wanted_generation():
        answer, self.wfile = self.wfile, cast(Any, io.BytesIO())
        self._refuse(412)
        written = cast(io.BytesIO, self.wfile).getvalue()
        self.wfile = answer
        return written
      # The emulator forgets an upload that is finished, and would answer 404
      # to a client that has not got the answer and asks again.
      if is_upload and self.path in store.finished_uploads:
        return store.finished_uploads[self.path]
      answer, self.wfile = self.wfile, cast(Any, io.BytesIO())
      Router(self).handle(self.command)
      written = cast(io.BytesIO, self.wfile).getvalue()
      self.wfile = answer
      if is_upload and b" 200 " in written.partition(b"\r\n")[0]:
        store.finished_uploads[self.path] = written
      found = _OBJECT.search(urlsplit(self.path).path)
      if found and self.command == "GET":
        bucket, name = map(unquote, found.groups())
        objects = store.storage.objects.get(bucket, {})
        generation = objects.get(name, {}).get("generation")
    if generation is not None:
      # tensorstore reads it from a header, which the emulator does not send,
      # and names it when it writes the object again.
      status, end, rest = written.partition(b"\r\n")
      header = f"x-goog-generation: {generation}".encode()
      written = status + end + header + end + rest
    return written

  def _is_wanted_generation(self) -> bool:
    """Whether an object that is written is as the request demands."""
    url = urlsplit(self.path)
    query, bucket = parse_qs(url.query), url.path.split("/")[-2]
    if "ifGenerationMatch" not in query or "name" not in query:
      return True
    objects = self._store.storage.objects.get(bucket, {})
    own = objects.get(query["name"][0], {}).get("generation", "0")
    return query["ifGenerationMatch"] == [own]

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
    """Says nothing of clients that were killed."""
