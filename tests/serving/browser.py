"""Chromium without a window, driven by its own protocol (DevTools)."""

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync import client

_PATIENCE_SECONDS = 60.0
ENTER = "\r"


def chromium() -> str | None:
  """Returns the browser; None if it is not installed."""
  return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
  """One page of a browser.

  Args:
    connection: Connection to the browser.
  """

  def __init__(self, connection: client.ClientConnection):
    self._connection = connection
    self._session: dict[str, str] = {}
    self._sent = 0
    # Errors and warnings that the page has caused.
    self.console: list[str] = []
    target = self.send("Target.createTarget", url="about:blank")
    attached = self.send("Target.attachToTarget", **target, flatten=True)
    self._session = attached
    for domain in ("Page", "Log", "Runtime"):
      self.send(f"{domain}.enable")

  def send(self, method: str, **parameters: Any) -> Any:
    """Sends a command, and returns its result."""
    self._sent += 1
    command = {"id": self._sent, "method": method, "params": parameters}
    self._connection.send(json.dumps(command | self._session))
    while True:
      message = json.loads(self._connection.recv(_PATIENCE_SECONDS))
      if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
        self.console.append(json.dumps(message["params"]))
      if message.get("id") == self._sent:
        assert "error" not in message, (method, message["error"])
        return message["result"]

  def open(self, url: str) -> None:
    self.send("Page.navigate", url=url)

  def run(self, expression: str) -> Any:
    """Returns the value of an expression in the page."""
    found = self.send(
      "Runtime.evaluate", expression=expression, returnByValue=True
    )
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")

  def text(self, selector: str) -> str:
    """Returns the text of the first element, if it is visible."""
    return next(iter(self.texts(selector)), "")

  def texts(self, selector: str) -> list[str]:
    """Returns the texts of all elements that are visible."""
    return self.run(
      f"[...document.querySelectorAll({json.dumps(selector)})]"
      ".filter((node) => node.checkVisibility())"
      ".map((node) => node.innerText)"
    )

  def click(self, selector: str) -> None:
    self.run(f"document.querySelector({json.dumps(selector)}).click()")

  def type(self, selector: str, text: str) -> None:
    """Replaces what a field has, by the keyboard."""
    self.run(f"document.querySelector({json.dumps(selector)}).select()")
    self.send("Input.insertText", text=text.removesuffix(ENTER))
    if text.endswith(ENTER):
      key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
      self.send("Input.dispatchKeyEvent", type="keyDown", text=ENTER, **key)
      self.send("Input.dispatchKeyEvent", type="keyUp", **key)

  def wait(self, condition: Callable[[], Any], what: str) -> None:
    """Waits until a condition holds."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
      assert time.monotonic() < limit, f"waited in vain until {what}"
      time.sleep(0.05)


def edit_passage(page: Browser, block_id: str, text: str) -> str:
  """Gives a passage on the page another text, and returns its selector."""
  card = f'.passage[data-id="{block_id}"]'
  page.click(f"{card} .edit")
  page.type(f"{card} textarea", text)
  page.click(f"{card} .editor .primary")
  page.wait(lambda: page.text("#edits"), "the page says that it is edited")
  return card


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
  """Starts Chromium, which sees no network but loopback.

  Args:
    profile: New folder for what the browser keeps.
  """
  binary = chromium()
  assert binary is not None
  arguments = [
    "--headless=new",
    "--remote-debugging-port=0",
    # A container's root has no sandbox, and few have /dev/shm.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--proxy-server=127.0.0.1:9",
    f"--user-data-dir={profile}",
  ]
  with subprocess.Popen(
    [binary, *arguments], stderr=subprocess.PIPE, text=True
  ) as process:
    try:
      assert process.stderr is not None
      found = (re.search(r"ws://\S+", line) for line in process.stderr)
      address = next(match[0] for match in found if match)
      with client.connect(address, max_size=None, proxy=None) as connection:
        yield Browser(connection)
    finally:
      process.kill()
