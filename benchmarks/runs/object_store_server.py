"""An object store on loopback that counts its requests and fails on demand.

It speaks Google Cloud Storage's JSON protocol, by `gcp-storage-emulator`, with
the objects in memory:

    python -m benchmarks.runs.object_store_server --bucket=bucket

prints its port and serves until its standard input ends, so that it does not
outlive the process that started it. `benchmarks.runs.object_store` starts it
and speaks to what is served under `/-/`:

    GET /-/requests       the requests so far: method, path and query
    POST /-/faults        replaces the faults by those of a JSON list
    GET /-/faults         the faults, each with how often it happened

A request with the header `X-Aside` is neither counted nor disturbed.
"""

import argparse
import functools
import io
import json
import logging
import re
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

_CONTROL = "/-/"
# Requests with this header are neither counted nor disturbed.
ASIDE = "X-Aside"
_OBJECT = re.compile(r"/b/([^/]+)/o/(.+)$")


class _State:
  """Objects, faults and requests, which the threads of the server share."""

  def __init__(self, buckets: list[str]):
    self.lock = threading.Lock()
    self.storage = Storage(use_memory_fs=True)
    # What it writes for its next start takes longer with every object.
    self.storage._write_config_to_file = lambda: None
    for name in buckets:
      create_bucket(name, self.storage)
      # Removed objects would stay in memory for a week.
      policy = {"retentionDurationSeconds": 0}
      self.storage.buckets[name]["softDeletePolicy"] = policy
    self.requests: list[str] = []
    # Answers to the last requests of uploads, by the uploads' addresses.
    self.finished_uploads: dict[str, bytes] = {}
    self.faults: list[dict[str, Any]] = []

  def note(self, request: str) -> dict[str, Any] | None:
    """Logs a request; returns the fault that happens to it, if any."""
    with self.lock:
      self.requests.append(request)
      for fault in self.faults:
        if fault["happened"] < fault["times"] and re.search(
          fault["match"], request
        ):
          fault["happened"] += 1
          return dict(fault)
    return None


class _Handler(RequestHandler):
  """Answers one request, unless a fault happens to it."""

  def __init__(self, state: _State, *args: Any):
    self._state = state
    super().__init__(state.storage, *args)

  def log_message(self, format: str, *args: Any) -> None:
    """Prints nothing."""

  def _serve(self) -> None:
    method = self.command
    # The whole body is read, and the answer sent, without the lock: a client
    # that is stopped in between must not stop the others.
    if size := self.headers.get("Content-Length"):
      self.rfile = io.BytesIO(self.rfile.read(int(size)))
    if self.path.startswith(_CONTROL):
      self._answer(200, json.dumps(self._control(method)).encode())
      return
    fault = None
    if self.headers.get(ASIDE) is None:
      fault = self._state.note(f"{method} {unquote(self.path)}")
    kind = fault["kind"] if fault else "none"
    if fault and kind == "hang":
      time.sleep(fault["seconds"])
      self.close_connection = True
      return
    if fault and kind == "refuse":
      self._refuse(fault["status"])
      return
    if method == "DELETE" and "upload_id=" in self.path:
      # The emulator does not know uploads that are given up.
      self._refuse(499)
      return
    written, generation = self._handle(method)
    if generation is not None:
      status, end, rest = written.partition(b"\r\n")
      header = f"x-goog-generation: {generation}".encode()
      written = status + end + header + end + rest
    if fault and kind == "lose answer":
      self._refuse(fault["status"])
    elif kind == "cut":
      self.wfile.write(written[: len(written) // 2])
      self.close_connection = True
    else:
      self.wfile.write(written)

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

  def _handle(self, method: str) -> tuple[bytes, str | None]:
    """Returns the emulator's answer, and the generation of what it read."""
    is_upload = method == "PUT" and "upload_id=" in self.path
    with self._state.lock:
      # The emulator forgets an upload that is finished, and would answer 404
      # to a client that has not got the answer and asks again.
      if is_upload and self.path in self._state.finished_uploads:
        return self._state.finished_uploads[self.path], None
      answer, self.wfile = self.wfile, cast(Any, io.BytesIO())
      Router(self).handle(method)
      generation = self._generation() if method == "GET" else None
      written = cast(io.BytesIO, self.wfile).getvalue()
      self.wfile = answer
      if is_upload and b" 200 " in written.partition(b"\r\n")[0]:
        self._state.finished_uploads[self.path] = written
    return written, generation

  def _generation(self) -> str | None:
    """Returns the generation of the object that is read, if it is one.

    tensorstore reads it from a header, which the emulator does not send, and
    names it when it writes the object again.
    """
    if found := _OBJECT.search(urlsplit(self.path).path):
      bucket, name = map(unquote, found.groups())
      file = self._state.storage.objects.get(bucket, {}).get(name)
      return None if file is None else file["generation"]
    return None

  def _control(self, method: str) -> Any:
    state, name = self._state, self.path.removeprefix(_CONTROL)
    with state.lock:
      if name == "requests":
        return list(state.requests)
      if method == "POST":
        given = json.loads(self.rfile.read() or b"[]")
        state.faults = [{**fault, "happened": 0} for fault in given]
      return state.faults

  def _refuse(self, status: int) -> None:
    error = {"code": status, "message": "a fault that was asked for"}
    self._answer(status, json.dumps({"error": error}).encode())

  def _answer(self, status: int, body: bytes) -> None:
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


def main() -> None:
  """Serves until standard input ends."""
  parser = argparse.ArgumentParser(description="An object store on loopback.")
  parser.add_argument("--bucket", action="append", default=[])
  arguments = parser.parse_args()
  # The emulator reports each object that is asked for and not there.
  logging.disable()
  handler = functools.partial(_Handler, _State(arguments.bucket))
  server = _Server(("127.0.0.1", 0), handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  print(server.server_address[1], flush=True)
  sys.stdin.read()


if __name__ == "__main__":
  main()
