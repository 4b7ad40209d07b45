"""The server around a service: limits, refusals, crowds and its end.

The service here is a small one of the tests', so that no model is needed;
tests/serving/test_page.py has the real one.
"""

import concurrent.futures
import contextlib
import json
import re
import threading
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax import serve
from realm_jax.evaluation.run import EditError
from realm_jax.serving import page as page_folder
from realm_jax.serving.app import Limits
from realm_jax.serving.server import PageServer, listen, url_of
from tests.serving import client

_FILES = Path(page_folder.__path__[0])


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

  def ask(self, text, edits):
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

  def require_words(self, texts):
    if "no words" in texts:
      raise ValueError("the question has no words")

  def answer(self, texts):
    self.batches.append(len(texts))
    return [self.ask(text, {}) for text in texts]

  def retrieve(self, texts, k):
    return [{"query": text, "k": k} for text in texts]

  def update(self, texts):
    return {"updated": len(texts)}


@contextlib.contextmanager
def _served(limits=None, host="127.0.0.1", **settings):
  """Yields a service and the port of the page that serves it."""
  service = _Echo()
  with listen(host, 0) as listening:
    server = PageServer(service, listening, limits or Limits(), **settings)
    with _running(server):
      try:
        yield service, listening.getsockname()[1]
      finally:
        service.gate.set()


@contextlib.contextmanager
def _running(server):
  """Runs a server in a thread; yields the list of what it returns."""
  returned, started = [], threading.Event()
  thread = threading.Thread(
    target=lambda: returned.append(server.serve_until_stopped(started.set))
  )
  thread.start()
  assert started.wait(10)
  try:
    yield returned
  finally:
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def served():
  limits = Limits(
    request_bytes=150_000, text_characters=50, edits=2, edit_characters=30
  )
  with _served(limits) as found:
    yield found


@pytest.fixture
def port(served):
  return served[1]


def test_the_page_takes_nothing_from_elsewhere(port):
  html = client.request(port, "GET", "/")
  assert html.headers["content-type"].startswith("text/html")
  assert html.body == (_FILES / "index.html").read_bytes()
  named = re.findall(r'(?:src|href)="([^"]*)"', html.body.decode())
  assert sorted(named) == ["data:,", "page.css", "page.js"]
  types = {"page.css": "text/css", "page.js": "text/javascript"}
  for name, media_type in types.items():
    file = client.request(port, "GET", f"/{name}")
    assert file.headers["content-type"].startswith(media_type)
    assert file.body == (_FILES / name).read_bytes()
  for path in _FILES.glob("*.*"):
    text = path.read_text()
    assert not re.search(r"https?:|@import|url\(", text), path
    # What would read a text as HTML or as a script.
    assert not re.search(
      r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text
    )
    assert not re.search(r"<script>|style=|\son\w+=", text), path


def test_every_answer_has_a_strict_policy(port):
  for answer in (
    client.request(port, "GET", "/"),
    client.request(port, "GET", "/nowhere"),
    client.request(port, "GET", "/", headers={"Host": "example.com"}),
    client.ask(port, "who?"),
    client.ask(port, "bug"),
  ):
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
  ("method", "path", "headers", "body", "status", "message"),
  [
    ("GET", "/nowhere", {}, None, 404, "nothing at /nowhere"),
    ("GET", "/../setup.py", {}, None, 404, "nothing at /../setup.py"),
    ("GET", "/api/ask", {}, None, 405, "does not take GET"),
    ("POST", "/api/ask", {}, b"{}", 415, "send JSON"),
    ("POST", "/ask", {"Content-Type": "text/plain"}, b"{}", 415, "send JSON"),
    ("POST", "/ask", client.JSON, b" " * 150_001, 413, "than 150,000 bytes"),
    # In pieces, without a length.
    ("POST", "/ask", client.JSON, [b" " * 80_000] * 2, 413, "than 150,000"),
    ("GET", "/", {"Host": "example.com:80"}, None, 403, "'example.com:80'"),
    ("GET", "/api/about", {"Host": "127.0.0.1.nip.io"}, None, 403, "alone"),
    ("GET", "/", {"Host": ""}, None, 403, "for this machine alone"),
  ],
)
def test_a_wrong_request_is_refused_in_words(
  port, method, path, headers, body, status, message
):
  answer = client.request(port, method, path, body, headers=headers)
  assert answer.status == status
  assert message in answer.fields["error"]


def _edits(*ids, text=""):
  edits = [{"id": block_id, "text": text} for block_id in ids]
  return json.dumps({"text": "a", "edits": edits}).encode()


@pytest.mark.parametrize(
  ("path", "body", "message"),
  [
    ("/api/ask", b"who?", "the request is not {"),
    ("/api/ask", b'{"text": "\xff"}', "the request is not {"),
    ("/api/ask", b"[" * 100_000, "the request is not {"),
    ("/api/ask", b'["who?"]', "the request is not {"),
    ("/api/ask", b"{}", "KeyError: 'text'"),
    ("/api/ask", b'{"text": 5}', "5 is no string"),
    ("/api/ask", b'{"text": " "}', "nothing to ask"),
    ("/api/ask", b'{"text": "%s"}' % (b"a" * 51), "51 characters; at most 50"),
    ("/api/ask", b'{"text": "\\ud800"}', "a character that no text has"),
    ("/api/ask", b'{"text": "a\\u0000"}', "a character that no text has"),
    ("/api/ask", b'{"text": "edit"}', "it does not fit"),
    ("/api/ask", b'{"text": "a", "edits": [1]}', "the request is not {"),
    ("/api/ask", b'{"text": "a", "edits": [{"id": "1"}]}', "KeyError: 'text'"),
    ("/api/ask", _edits("b"), "'b'"),
    ("/api/ask", _edits("9" * 20), "more than 63 bits"),
    ("/api/ask", _edits("1", text="a" * 31), "31 characters; at most 30"),
    ("/api/ask", _edits("1", "2", "1"), "3 blocks are edited, and at most 2"),
    ("/ask", b"{}", 'is not {"questions"'),
    ("/ask", b'{"questions": "who?"}', "a list of 1 to 256 texts"),
    ("/ask", b'{"questions": []}', "a list of 1 to 256 texts"),
    ("/ask", b'{"questions": [5]}', "5 is no string"),
    ("/retrieve", b'{"queries": ["a"], "k": 0}', "k=0; want 1 to 1000"),
    ("/retrieve", b'{"queries": ["a"], "k": "5"}', "k='5'"),
  ],
)
def test_what_does_not_fit_is_refused_in_words(port, path, body, message):
  answer = client.request(port, "POST", path, body, headers=client.JSON)
  assert answer.status == 400
  assert message in answer.fields["error"]


@pytest.mark.parametrize("host", ["localhost:8000", "LOCALHOST", "[::1]:8000"])
def test_this_machine_has_several_names(port, host):
  assert client.request(port, "GET", "/", headers={"Host": host}).status == 200


def test_a_bug_is_logged_and_not_shown(port, caplog):
  answer = client.ask(port, "bug")
  assert answer.status == 500 and "secret" not in answer.body.decode()
  # The server goes on. It logs after its answer, and before the next one.
  assert client.ask(port, "who?").fields == {"answer": "who?"}
  assert "secret" in caplog.text


def test_beyond_its_queue_it_says_when_to_try_again():
  with _served(Limits(waiting=3)) as (service, port):
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
      first = pool.submit(client.ask, port, "first")
      assert service.begun.wait(10)
      others = [pool.submit(client.ask, port, str(i)) for i in range(20 - 1)]
      # Those that do not fit are answered while the first one is computed.
      done = set()
      for future in concurrent.futures.as_completed(others, timeout=30):
        done.add(future)
        if len(done) == 16:
          break
      service.gate.set()
      answers = [future.result(30) for future in [first, *others]]
  # One after the other is computed.
  assert service.most == 1
  counts = {s: sum(a.status == s for a in answers) for s in (200, 503)}
  assert counts == {200: 4, 503: 16}
  refused = next(answer for answer in answers if answer.status == 503)
  assert "3 requests wait already" in refused.fields["error"]
  assert refused.headers["retry-after"] == "2"


def test_requests_that_wait_together_are_computed_together():
  with _served(Limits(waiting=20)) as (service, port):
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(31) as pool:
      first = pool.submit(client.ask, port, "first")
      assert service.begun.wait(10)
      # One that is wrong is refused by itself, and at once.
      wrong = client.post(port, "/ask", questions=["a", "no words"])
      assert wrong.status == 400 and "no words" in wrong.fields["error"]
      asked = {
        pool.submit(client.post, port, "/ask", questions=[f"{i}", f"{i}?"]): i
        for i in range(30)
      }
      # When all that do not fit are refused, the others are in line.
      ended = concurrent.futures.as_completed(asked, timeout=30)
      refused = {next(ended) for _ in range(10)}
      assert {future.result().status for future in refused} == {503}
      service.gate.set()
      assert first.result(30).status == 200
      for future in asked.keys() - refused:
        i = asked[future]
        results = future.result(30).fields["results"]
        assert results == [{"answer": f"{i}"}, {"answer": f"{i}?"}]
    assert service.batches == [40]
    found = client.post(port, "/retrieve", queries=["a"], k=2)
    assert found.fields == {"results": [{"query": "a", "k": 2}]}


def test_updates_have_to_be_allowed(port):
  blocks = [{"id": "1", "text": "a"}]
  refused = client.post(port, "/update", blocks=blocks)
  assert refused.status == 403
  assert "allow_updates" in refused.fields["error"]
  with _served(allow_updates=True) as (_, port):
    answer = client.post(port, "/update", blocks=blocks)
    assert answer.fields == {"updated": 1}
    wrong = client.post(port, "/update", blocks=[{"id": "x", "text": "a"}])
    assert wrong.status == 400 and "'x'" in wrong.fields["error"]


def test_it_ends_while_a_request_is_computed():
  service = _Echo()
  service.gate.clear()
  with listen("127.0.0.1", 0) as listening:
    server = PageServer(service, listening, Limits(), farewell_seconds=0)
    with (
      _running(server) as is_idle,
      concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
      pool.submit(client.ask, listening.getsockname()[1], "who?")
      assert service.begun.wait(10)
      server.should_exit = True
  # The gate is still shut: the model's thread is not waited for.
  assert is_idle == [False]
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
      serve._serve()
  # It is free again at once.
  listen("127.0.0.1", port).close()
  with (
    flagsaver.flagsaver(host="no.such.host.invalid"),
    pytest.raises(ValueError, match=r"--host=no\.such\.host\.invalid"),
  ):
    serve._serve()


def test_other_machines_are_warned_of_and_may_use_any_name(caplog):
  with _served(host="0.0.0.0") as (_, port):
    assert "whoever reaches this machine can ask" in caplog.text
    named = {"Host": "gpu7.example.org:8000"}
    assert client.request(port, "GET", "/", headers=named).status == 200
