"""The server around a service: limits, refusals, crowds and its end."""

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

from harness.jobs import wait_until
from realm_jax import serve
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.run import TrainedRun
from realm_jax.serving.app import PageApp
from realm_jax.serving.server import listen, url_of
from realm_jax.serving.service import Service
from tests import tiny_world
from tests.conftest import PROJECT_DIR
from tests.serving import client

pytestmark = pytest.mark.slow

_ASKED = "where was Ada born?"
_JSON = {"Content-Type": "application/json"}
_FILES = PROJECT_DIR / "realm_jax" / "serving" / "page"


class _Gated(Service):
  """The service of a run, whose turns end once its gate is open."""

  def __init__(self, run):
    super().__init__(run)
    self.gate, self.begun, self.turns = threading.Event(), threading.Event(), []
    self.gate.set()

  def retrieve(self, texts, k, where=None, **settings):
    return self._gated(texts, super().retrieve(texts, k, where, **settings))

  def answer(self, texts, where=None, **settings):
    return self._gated(texts, super().answer(texts, where, **settings))

  def _gated(self, texts, results):
    """The first result is there when a turn has begun."""
    first = next(results)
    self.turns.append(len(texts))
    self.begun.set()
    assert self.gate.wait(30)
    yield from (first, *results)


@contextlib.contextmanager
def _served(run, host="127.0.0.1", *, farewell_seconds=1, **settings):
  """Yields a service, the port of the page that serves it, and the page."""
  service = _Gated(run)
  page = PageApp(service, **settings)
  with client.served(page, host, farewell_seconds=farewell_seconds) as port:
    wait_until(lambda: service.turns, what="its programs are compiled")
    wait_until(lambda: not page.is_computing, what="the page is warm")
    service.begun.clear()
    service.turns.clear()
    try:
      yield service, port, page
    finally:
      if farewell_seconds:
        service.gate.set()


@pytest.fixture(scope="module")
def port(run):
  with _served(run) as (_, port, _):
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
  ):
    _has_a_strict_policy(answer)


def _has_a_strict_policy(answer):
  policy = answer.headers["content-security-policy"]
  assert "default-src 'none'" in policy and "unsafe" not in policy
  assert answer.headers["x-content-type-options"] == "nosniff"


_EDITS = [{"id": str(i), "text": "a"} for i in range(17)]
_TOO_MANY, _UNKNOWN = (
  json.dumps({"text": _ASKED, "edits": edits}).encode()
  for edits in (_EDITS, _EDITS[:1])
)


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
        ("/api/ask", _UNKNOWN, "no block has the id '0'"),
        ("/api/ask", _TOO_MANY, "at most 16"),
        ("/ask", b'{"questions": []}', "a list of 1 to 2000"),
        ("/retrieve", b'{"queries": ["a"], "k": 1, "topk": 1}', "k and topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 0}', "topk=0; want 1"),
        ("/retrieve", b'{"queries": ["a"], "return_scores": 3}', "true or"),
        (
          "/retrieve",
          b'{"queries": ["a"], "rerank": 1}',
          "rerank=1; want true",
        ),
        ("/retrieve", b'{"queries": ["a"], "where": "de"}', "want an object"),
        ("/retrieve", b'{"queries": ["a"], "k": 0}', "k=0; want 1 to 1000"),
        ("/retrieve", b'{"queries": ["a"], "k": true}', "k=True; want 1 to"),
      )
    ),
  ],
)
def test_a_wrong_request_is_refused(port, path, headers, body, status, words):
  method = "GET" if body is None else "POST"
  answer = client.request(port, method, path, content=body, headers=headers)
  assert answer.status_code == status
  assert words in answer.json()["error"]


def test_a_bug_is_logged_and_not_shown(port, caplog, monkeypatch):
  def fail(*_):
    raise RuntimeError("secret")

  with monkeypatch.context() as patch:
    patch.setattr(TrainedRun, "search", fail)
    answer = client.ask(port, _ASKED)
  assert answer.status_code == 500 and "secret" not in answer.text
  _has_a_strict_policy(answer)
  # The server goes on. It logs after its answer, and before the next one.
  assert client.ask(port, _ASKED).json()["text"] == _ASKED
  assert "secret" in caplog.text


def test_requests_that_wait_are_computed_together_and_too_many_refused(run):
  with _served(run, max_waiting=20) as (service, port, _):
    alone = client.post(port, "/ask", questions=[_ASKED]).json()["results"]
    (result,) = ask(run, [_ASKED])
    told = {"question": _ASKED, **result.json()}
    del told["model_dir"]  # Paths of the server are not for programs.
    assert alone == [json.loads(json.dumps(told))]
    service.begun.clear()
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(31) as pool:
      first = pool.submit(client.post, port, "/ask", questions=[_ASKED])
      assert service.begun.wait(10)
      asked = {
        pool.submit(client.post, port, "/ask", questions=[f"{i}", _ASKED]): i
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
      assert first.result(30).json()["results"] == alone
      for future in asked.keys() - refused:
        number, same = future.result(30).json()["results"]
        assert number["question"] == str(asked[future])
        assert same["answer"] == alone[0]["answer"]
    assert service.turns == [1, 1, 40]


def test_nothing_is_computed_for_clients_that_have_gone(run):
  with (
    _served(run) as (service, port, _),
    concurrent.futures.ThreadPoolExecutor(2) as clients,
  ):
    service.gate.clear()
    held = clients.submit(client.post, port, "/retrieve", queries=["a"])
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
    assert service.turns == [1, 1]


def _wait_for(port, number):
  """Waits until requests wait."""
  wait_until(
    lambda: client.request(port, "GET", "/healthz").json()["waiting"] == number,
    what=f"{number} requests wait",
  )


def test_a_turn_retrieves_no_more_blocks_than_memory_allows(run):
  with _served(run) as (service, port, _):
    service.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
      # Each alone may be as large as a request can be, and none is refused.
      sizes = (1, 20, 20, 10, 256, 2)
      requests = []
      for size in sizes:
        queries = [_ASKED] * size
        requests.append(
          pool.submit(client.post, port, "/retrieve", queries=queries, k=1000)
        )
        assert service.begun.wait(10)
      _wait_for(port, 5)
      service.gate.set()
      for size, request in zip(sizes, requests, strict=True):
        assert len(request.result(30).json()["results"]) == size
  # With 1,000 blocks a query, 32 queries at most share a turn.
  assert sorted(service.turns) == [1, 20, 20 + 10 + 2, 256]


def test_an_update_is_for_the_searches_that_begin_after_it(run):
  block, edited = run.corpus.block(0).id, "Oda was born in Velt."
  query = {"queries": [_ASKED, _ASKED], "k": run.snapshot.num_blocks}

  def texts(answer):
    results = answer.json()["results"]
    return [{b["id"]: b["text"] for b in one["blocks"]} for one in results]

  with (
    _served(run, allow_updates=True) as (service, port, _),
    concurrent.futures.ThreadPoolExecutor(1) as pool,
  ):
    service.gate.clear()
    before = pool.submit(client.post, port, "/retrieve", **query)
    assert service.begun.wait(10)
    assert service.update({block: edited}) == {"updated": 1}
    service.gate.set()
    old, same = texts(before.result(30))
    assert old == same and old[block] == run.block(0).text
    assert (
      texts(client.post(port, "/retrieve", **query))
      == [old | {block: edited}] * 2
    )
    # The edits of a page come over it, and its old text is one.
    blocks = [{"id": block, "text": old[block]}]
    told = client.post(port, "/api/ask", text=_ASKED, edits=blocks).json()
    assert told["answer"] == Service(run).explain(_ASKED)["answer"]
    assert client.post(port, "/update", blocks=blocks).json() == {"updated": 1}
    assert texts(client.post(port, "/retrieve", **query)) == [old, old]


def test_it_ends_while_a_request_is_computed(run):
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    with _served(run, farewell_seconds=0) as (service, port, page):
      service.gate.clear()
      pool.submit(client.post, port, "/ask", questions=[_ASKED])
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


def test_other_machines_may_be_let_in(run, caplog):
  with _served(run, "0.0.0.0", hosts=["gpu7.example.org"]) as (_, port, _):
    assert "whoever reaches this machine can ask" in caplog.text
    for name, status in (("gpu7.example.org:8000", 200), ("example.com", 403)):
      answer = client.request(port, "GET", "/", headers={"Host": name})
      assert answer.status_code == status


def test_a_wrong_text_among_others_has_an_error_in_its_place(port):
  wrong = (
    (rb"\ud800", "half of a surrogate pair"),
    (b" ", "no words"),
    ("ქართული".encode(), "ქართული"),
    (b"a" * 2001, "at most 2,000"),
  )
  texts = b'", "'.join(text for text, _ in wrong)
  for path, name in (("/retrieve", "queries"), ("/ask", "questions")):
    body = b'{"%s": ["a", "%s", 1e999, "a"]}' % (name.encode(), texts)
    answer = client.request(port, "POST", path, content=body, headers=_JSON)
    first, *refused, number, last = answer.json()["results"]
    assert first == last and len(first["blocks"]) >= 2
    for one, (_, said) in zip(refused, wrong, strict=True):
      assert said in one["error"]
    assert number["error"] == "inf is no string"
  # In the form of Search-R1, it finds nothing.
  body = b'{"queries": ["a", "%s", 7], "topk": 2}' % texts
  answer = client.request(
    port, "POST", "/retrieve", content=body, headers=_JSON
  )
  assert [len(found) for found in answer.json()["result"]] == [2, 0, 0, 0, 0, 0]


def test_a_token_guards_all_but_the_page_and_its_health(run):
  with _served(run, token="secret") as (service, port, _):
    service.problem = "/a/file"
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


def test_a_request_that_does_not_arrive_is_given_up(port, monkeypatch):
  monkeypatch.setattr("realm_jax.serving.requests._BODY_SECONDS", 0.2)

  def slowly():
    yield b"{"
    time.sleep(1.0)
    yield b"}"

  answer = client.request(port, "POST", "/ask", content=slowly(), headers=_JSON)
  assert answer.status_code == 408
