"""A small language model behind a real HTTP server that can fail on demand.

The model copies: log p of a token is log(½ n/c + ½/V), where n of the c tokens
before it are the same, and V is `VOCABULARY`. So words in a passage become
likely.
"""

import contextlib
import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

VOCABULARY = 1000
BEGIN = "<s>"
_TOKEN = re.compile(r"\s?\w+|\s|[^\w\s]")


def tokens_of(text: str) -> list[str]:
  """Returns the tokens of a text: words with preceding spaces, and signs."""
  return _TOKEN.findall(text)


def log_probs_of(tokens: list[str]) -> list[float]:
  """Returns log p of each token, given the previous ones."""
  log_probs = []
  for place, token in enumerate(tokens):
    same = tokens[:place].count(token) / max(place, 1)
    log_probs.append(math.log(0.5 * same + 0.5 / VOCABULARY))
  return log_probs


class LanguageModelServer:
  """A server of `/v1/completions` in this process.

  Attributes:
    kind: Supported requests: OpenAI's echo, with offsets in characters or in
      bytes; vLLM's `prompt_logprobs`; only chats; or no log-probabilities.
    begins: Whether a token before the text counts in the offsets.
    status: Status code of every response, for example of an overloaded server.
    refused, broken, hanging, undefined: Texts with this word are refused, break
      the connection, get no response for a minute, or get no log-probabilities.
    key: Key that requests must have.
    prompts: Prompts of all requests, in order.
  """

  def __init__(self, kind: str = "characters"):
    self.kind: (
      Literal["characters", "bytes", "prompt_logprobs", "chat", "none"] | str
    ) = kind
    self.begins = False
    self.status = 200
    self.refused = self.broken = self.hanging = self.undefined = ""
    self.key = ""
    self.prompts: list[str] = []
    self._port = 0
    self._server: ThreadingHTTPServer | None = None
    self._closing = threading.Event()

  @property
  def url(self) -> str:
    """URL of the API, the same after a restart."""
    return f"http://127.0.0.1:{self._port}/v1"

  def start(self) -> None:
    """Starts listening, after a restart at the same port."""
    self._closing.clear()
    server = _Server(("127.0.0.1", self._port), _Handler)
    server.model = self
    self._server, self._port = server, server.server_address[1]
    threading.Thread(target=server.serve_forever, args=[0.05]).start()

  def stop(self) -> None:
    """Stops listening, so connections are refused."""
    self._closing.set()
    if self._server is not None:
      self._server.shutdown()
      self._server.server_close()
      self._server = None

  def __enter__(self) -> "LanguageModelServer":
    self.start()
    return self

  def __exit__(self, *_: object) -> None:
    self.stop()

  def answer(self, request: dict[str, Any], key: str) -> tuple[int, Any]:
    """Returns the status and the body of a response.

    A body of None breaks the connection.
    """
    prompt = request["prompt"]
    self.prompts.append(prompt)
    if self.key and key != f"Bearer {self.key}":
      return 401, {"error": "no such key"}
    if self.status != 200:
      return self.status, {"error": "overloaded"}
    if self.hanging and self.hanging in prompt:
      self._closing.wait(60)
    if self.broken and self.broken in prompt:
      return 200, None
    if self.refused and self.refused in prompt:
      return 400, {"error": "the prompt is too long"}
    texts = tokens_of(prompt)
    log_probs: list[float | None] = [*log_probs_of(texts)]
    if self.undefined and self.undefined in prompt:
      log_probs[-1] = math.nan
    usage = {"prompt_tokens": len(texts), "completion_tokens": 1}
    usage["total_tokens"] = len(texts) + 1
    choice: dict[str, Any] = {"index": 0, "text": " x", "logprobs": None}
    if self.kind == "prompt_logprobs":
      scored = [
        {"7": {"logprob": p, "rank": 9, "decoded_token": _alone(text)}}
        for text, p in zip(texts, log_probs, strict=True)
      ]
      for token in scored:
        token["8"] = {"logprob": -0.01, "rank": 1, "decoded_token": " the"}
      choice["prompt_logprobs"] = [None, *scored] if self.begins else [None]
      choice["prompt_logprobs"] += [] if self.begins else scored[1:]
    elif request.get("echo") and self.kind in ("characters", "bytes"):
      texts = [BEGIN] * self.begins + [*texts, " x"]
      offsets, done = [], 0
      for text in texts:
        offsets.append(done)
        done += len(text.encode() if self.kind == "bytes" else text)
      choice["text"] = prompt + " x"
      choice["logprobs"] = {
        "tokens": texts,
        "text_offset": offsets,
        "token_logprobs": [None] * self.begins + [*log_probs, -1.0],
      }
      if not self.begins:
        choice["logprobs"]["token_logprobs"][0] = None
    return 200, {
      "object": "text_completion",
      "choices": [choice],
      "usage": usage,
    }


def _alone(token: str) -> str:
  """Decodes a token like servers that lose spaces and split characters."""
  return "".join(c if c.isascii() else "\ufffd" for c in token.strip())


class _Server(ThreadingHTTPServer):
  daemon_threads = True
  block_on_close = False
  request_queue_size = 128
  model: LanguageModelServer


class _Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def do_POST(self) -> None:
    assert isinstance(self.server, _Server)
    model = self.server.model
    body = self.rfile.read(int(self.headers["Content-Length"]))
    if model.kind == "chat" or self.path != "/v1/completions":
      status, answer = 404, {"error": "not found"}
    else:
      key = self.headers.get("Authorization", "")
      status, answer = model.answer(json.loads(body), key)
    if answer is None or model._server is not self.server:
      self.close_connection = True
      return
    content = json.dumps(answer).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    # A client that was stopped has not waited for the response.
    with contextlib.suppress(OSError):
      self.wfile.write(content)

  def log_message(self, format: str, *args: Any) -> None:
    """Does not log requests."""
