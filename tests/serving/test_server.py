"""The server around a service: limits, refusals, crowds and its end.

The service here is a small one of the tests', so that no model is needed;
tests/serving/test_page.py has the real one.
"""

import concurrent.futures
import contextlib
import json
import re
import socket
import threading
import time

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax import serve
from realm_jax.evaluation.run import EditError, RunConfig
from realm_jax.serving.app import PageApp, listen, url_of
from tests import tiny_world
from tests.conftest import PROJECT_DIR
from tests.processes.jobs import wait_until
from tests.serving import client

_JSON = {"Content-Type": "application/json"}
_FILES = PROJECT_DIR / "realm_jax" / "serving" / "page"


class _Echo:
  """Says what it was asked, once its gate is open."""

  def __init__(self):
    self.gate = threading.Event()
    self.gate.set()
    self.begun = threading.Event()
    self.lock, self.number, self.most = threading.Lock(), 0, 0
    self.batches = []

  def about(self):
    return {"runs": {}}

  def warm_up(self):
    """Nothing has to be compiled."""

  def explain(self, text, edits):
    del edits
    with self.lock:
      self.number += 1
      self.most = max(self.most, self.number)
    self.begun.set()
    assert self.gate.wait(30)
    self.number -= 1
    if text == "edit":
      raise EditError("it does not fit")
    if text == "bug":
      raise RuntimeError("secret")
    return {"answer": text}

  def health(self):
    return {"status": "ok", "problem": "/a/file"}

  def answer(self, texts):
    self.batches.append(len(texts))
    return [self.explain(text, {}) for text in texts]

  def retrieve(self, texts, k):
    self.batches.append(len(texts))
    if texts[0] == "hold":
      self.begun.set()
      assert self.gate.wait(30)
    return [{"query": text, "k": k} for text in texts]

  def documents(self, texts, k, *, return_scores):
    return [[text, k, return_scores] for text in texts]

  def update(self, texts):
    return {"updated": len(texts)}


@contextlib.contextmanager
def _served(host="127.0.0.1", *, farewell_seconds=1, **settings):
  """Yields a service, the port of the page that serves it, and the page."""
  service, started = _Echo(), threading.Event()
  page = PageApp(service, started=started.set, **settings)
  with client.served(page, host, farewell_seconds=farewell_seconds) as port:
    assert started.wait(10)
    try:
      yield service, port, page
    finally:
      if farewell_seconds:
        service.gate.set()


@pytest.fixture(scope="module")
def port():
  with _served() as (_, port, _):
    yield port


def test_the_page_takes_nothing_from_elsewhere(port):
  for name in ("", "index.html", "page.css", "page.js"):
    file = client.request(port, "GET", f"/{name}")
    assert file.content == (_FILES / (name or "index.html")).read_bytes()
    # Nor does it read a text as HTML or as a script.
    assert not re.search(
      rb"https?:|@import|url\(|innerHTML|eval\(", file.content
    )


def test_every_answer_has_a_strict_policy(port):
  for answer in (
    client.request(port, "GET", "/", headers={"Host": "localhost:8000"}),
    client.request(port, "GET", "/nowhere"),
    client.request(port, "GET", "/", headers={"Host": "example.com"}),
    client.ask(port, "bug"),
  ):
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


_EDITS = [{"id": str(i), "text": "a"} for i in range(17)]
_TOO_MANY = json.dumps({"text": "a", "edits": _EDITS}).encode()


@pytest.mark.parametrize(
  ("path", "headers", "body", "status", "words"),
  [
    ("/ask", {"Content-Type": "text/plain"}, b"{}", 415, "JSON"),
    # In pieces, without a length.
    ("/ask", _JSON, iter([b" " * 1_500_000] * 2), 413, "2,097,152 bytes"),
    ("/", {"Host": "example.com:80"}, None, 403, "'example.com:80'"),
    ("/", {"Host": "[::1"}, None, 403, "answers to localhost"),
    ("/update", _JSON, b"{}", 403, "--allow_updates"),
    *(
      (path, _JSON, body, 400, words)
      for path, body, words in (
        ("/api/ask", b"[" * 100_000, "no JSON"),
        ("/api/ask", b'{"text": " "}', "nothing to ask"),
        ("/api/ask", b'{"text": "%s"}' % (b"a" * 2001), "at most 2,000"),
        ("/api/ask", b'{"text": "\\ud800"}', "U+0000"),
        ("/api/ask", b'{"text": "edit"}', "it does not fit"),
        ("/api/ask", _TOO_MANY, "at most 16"),
        ("/ask", b'{"questions": []}', "a list of 1 to 2000"),
        ("/retrieve", b'{"queries": ["a"], "k": 1, "topk": 1}', "k and topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 0}', "topk=0; want 1"),
        ("/retrieve", b'{"queries": ["a"], "return_scores": 3}', "true or"),
        ("/retrieve", b'{"queries": ["a"], "k": 0}', "k=0; want 1 to 1000"),
      )
    ),
  ],
)
def test_a_wrong_request_is_refused(port, path, headers, body, status, words):
  method = "GET" if body is None else "POST"
  answer = client.request(port, method, path, content=body, headers=headers)
  assert answer.status_code == status
  assert words in answer.json()["error"]


def test_a_bug_is_logged_and_not_shown(port, caplog):
  answer = client.ask(port, "bug")
  assert answer.status_code == 500 and "secret" not in answer.text
  # The server goes on. It logs after its answer, and before the next one.
  assert client.ask(port, "who?").json() == {"answer": "who?"}
  assert "secret" in caplog.text


def test_requests_that_wait_are_computed_together_and_too_many_refused():
  with _served(max_waiting=20) as (service, port, _):
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(31) as pool:
      first = pool.submit(client.ask, port, "first")
      assert service.begun.wait(10)
      asked = {
        pool.submit(client.post, port, "/ask", questions=[f"{i}", f"{i}?"]): i
        for i in range(30)
      }
      # When all that do not fit are refused, the others are in line.
      ended = concurrent.futures.as_completed(asked, timeout=30)
      refused = {next(ended) for _ in range(10)}
      for answer in (future.result() for future in refused):
        assert (
          answer.status_code == 503 and answer.headers["retry-after"] == "2"
        )
        assert "try again" in answer.json()["error"]
      service.gate.set()
      assert first.result(30).status_code == 200
      for future in asked.keys() - refused:
        i = asked[future]
        results = future.result(30).json()["results"]
        assert results == [{"answer": f"{i}"}, {"answer": f"{i}?"}]
    assert service.batches == [40] and service.most == 1
    found = client.post(port, "/retrieve", queries=["a"], k=2)
    assert found.json() == {"results": [{"query": "a", "k": 2}]}


def test_nothing_is_computed_for_clients_that_have_gone():
  with (
    _served() as (service, port, _),
    concurrent.futures.ThreadPoolExecutor(2) as clients,
  ):
    service.gate.clear()
    held = clients.submit(client.post, port, "/retrieve", queries=["hold"])
    assert service.begun.wait(10)
    body = b'{"questions": ["impatient"]}'
    head = b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as impatient:
      impatient.sendall(head % len(body) + body)
      _wait_for(port, 1)
    kept = clients.submit(client.post, port, "/ask", questions=["patient"])
    _wait_for(port, 2)
    service.gate.set()
    assert held.result().status_code == kept.result().status_code == 200
    assert service.batches == [1, 1]


def _wait_for(port, number):
  """Waits until requests wait."""
  wait_until(
    lambda: client.request(port, "GET", "/healthz").json()["waiting"] == number,
    what=f"{number} requests wait",
  )


def test_a_turn_retrieves_no_more_blocks_than_memory_allows():
  with _served() as (service, port, _):
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
      first = pool.submit(client.post, port, "/retrieve", queries=["hold"], k=1)
      assert service.begun.wait(10)
      # Each alone may be as large as a request can be, and none is refused.
      crowd = [
        pool.submit(client.post, port, "/retrieve", queries=["a"] * n, k=1000)
        for n in (20, 20, 10, 256, 2)
      ]
      _wait_for(port, 5)
      service.gate.set()
      for request in (first, *crowd):
        assert request.result(30).status_code == 200
  # With 1,000 blocks a query, 32 queries at most share a turn.
  assert sorted(service.batches) == [1, 20, 20 + 10 + 2, 256]


def test_it_ends_while_a_request_is_computed():
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    with _served(farewell_seconds=0) as (service, port, page):
      service.gate.clear()
      pool.submit(client.ask, port, "who?")
      assert service.begun.wait(10)
    # The gate is still shut: the model's thread is not waited for.
    assert page.is_computing
    service.gate.set()


def test_a_port_in_use_is_named():
  flags.FLAGS.mark_as_parsed()
  with (
    listen("127.0.0.1", 0) as listening,
    flagsaver.flagsaver(port=listening.getsockname()[1]),
  ):
    port = listening.getsockname()[1]
    assert url_of(listening) == f"http://127.0.0.1:{port}"
    with pytest.raises(ValueError, match=rf"port={port} of .*--port=0 takes"):
      serve._serve(RunConfig("nowhere", "nowhere", tiny_world.RETRIEVER))
  # It is free again at once.
  listen("127.0.0.1", port).close()


def test_other_machines_may_be_let_in_and_updates_allowed(caplog):
  hosts = ["gpu7.example.org"]
  with _served("0.0.0.0", hosts=hosts, allow_updates=True) as served:
    _, port, _ = served
    assert "whoever reaches this machine can ask" in caplog.text
    for name, status in (("gpu7.example.org:8000", 200), ("example.com", 403)):
      answer = client.request(port, "GET", "/", headers={"Host": name})
      assert answer.status_code == status
    answer = client.post(port, "/update", blocks=[{"id": "1", "text": "a"}])
    assert answer.json() == {"updated": 1}


def test_a_wrong_text_among_others_has_an_error_in_its_place(port):
  body = rb'{"queries": ["a", "\ud800", 7, "b"], "k": 2}'
  answer = client.request(
    port, "POST", "/retrieve", content=body, headers=_JSON
  )
  first, half, number, last = answer.json()["results"]
  assert [first, last] == [{"query": text, "k": 2} for text in "ab"]
  assert "half of a surrogate pair" in half["error"]
  assert number == {"query": 7, "error": "7 is no string"}
  # In the form of Search-R1, it finds nothing.
  body = rb'{"queries": ["a", "\ud800"], "topk": 2, "return_scores": true}'
  answer = client.request(
    port, "POST", "/retrieve", content=body, headers=_JSON
  )
  assert answer.json() == {"result": [["a", 2, True], []]}
  body = b'{"questions": ["%s"]}' % (b"a" * 2001)
  answer = client.request(port, "POST", "/ask", content=body, headers=_JSON)
  assert "at most 2,000" in answer.json()["results"][0]["error"]


def test_a_token_guards_all_but_the_page_and_its_health():
  with _served(token="secret") as (_, port, _):
    for path in ("/", "/page.js", "/healthz"):
      answer = client.request(port, "GET", path)
      assert answer.status_code == 200 and "/a/file" not in answer.text
    assert client.request(port, "GET", "/nowhere").status_code == 401
    for given, status in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
      answer = client.request(port, "GET", "/api/about", headers=given)
      assert answer.status_code == status
      answer = client.request(
        port, "POST", "/retrieve", json={"queries": ["a"]}, headers=given
      )
      assert answer.status_code == status


def test_a_request_that_does_not_arrive_is_given_up(monkeypatch):
  monkeypatch.setattr("realm_jax.serving.app._BODY_SECONDS", 0.2)

  def slowly():
    yield b"{"
    time.sleep(1.0)
    yield b"}"

  with _served() as (_, port, _):
    answer = client.request(
      port, "POST", "/ask", content=slowly(), headers=_JSON
    )
    assert answer.status_code == 408
