"""Chromium without a window, driven by the W3C's WebDriver protocol."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_PATIENCE_SECONDS = 60.0
# Loopback is asked without the proxies that the environment may name.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ENTER = "\ue007"


def chromium() -> tuple[str, str] | None:
  """Returns the browser and its driver; None if they are not installed."""
  browser = shutil.which("chromium") or shutil.which("google-chrome")
  driver = shutil.which("chromedriver")
  return None if browser is None or driver is None else (browser, driver)


class Browser:
  """One page of a browser.

  Args:
    session: URL of the driver's session.
  """

  def __init__(self, session: str):
    self._session = session

  def _send(self, method: str, path: str, /, **fields: Any) -> Any:
    return send(method, f"{self._session}/{path}", **fields)

  def open(self, url: str) -> None:
    self._send("POST", "url", url=url)

  def run(self, script: str, *arguments: Any) -> Any:
    """Returns what a script in the page returns."""
    return self._send("POST", "execute/sync", script=script, args=arguments)

  def text(self, selector: str) -> str:
    """Returns the text of the first element, if it is visible."""
    return next(iter(self.texts(selector)), "")

  def texts(self, selector: str) -> list[str]:
    """Returns the texts of all elements that are visible."""
    return self.run(
      "return [...document.querySelectorAll(arguments[0])]"
      ".filter((node) => node.checkVisibility())"
      ".map((node) => node.innerText)",
      selector,
    )

  def _element(self, selector: str) -> str:
    found = self._send("POST", "element", using="css selector", value=selector)
    return found[_ELEMENT]

  def click(self, selector: str) -> None:
    self._send("POST", f"element/{self._element(selector)}/click")

  def type(self, selector: str, text: str) -> None:
    """Replaces what a field has, by the keyboard."""
    element = self._element(selector)
    self._send("POST", f"element/{element}/clear")
    self._send("POST", f"element/{element}/value", text=text)

  def wait(self, condition: Callable[[], Any], what: str) -> None:
    """Waits until a condition holds."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
      assert time.monotonic() < limit, f"waited in vain until {what}"
      time.sleep(0.05)

  def console(self) -> list[str]:
    """Returns the errors and warnings that the page has caused."""
    entries = self._send("POST", "se/log", type="browser")
    return [entry["message"] for entry in entries]


def send(method: str, address: str, /, **fields: Any) -> Any:
  """Sends a command to a driver, and returns its value."""
  data = None if method == "GET" else json.dumps(fields).encode()
  headers = {"Content-Type": "application/json"}
  request = urllib.request.Request(address, data, headers, method=method)
  try:
    with _OPENER.open(request, timeout=_PATIENCE_SECONDS) as response:
      return json.load(response)["value"]
  except urllib.error.HTTPError as error:
    raise AssertionError(error.read().decode()) from error


@contextlib.contextmanager
def opened(profile: Path, *options: str) -> Iterator[Browser]:
  """Starts Chromium, which sees no network but loopback.

  Args:
    profile: New folder for what the browser keeps.
    options: Further options of its command line.
  """
  found = chromium()
  assert found is not None
  binary, driver_binary = found
  with subprocess.Popen(
    [driver_binary, "--port=0"], stdout=subprocess.PIPE, text=True
  ) as driver:
    try:
      assert driver.stdout is not None
      port = next(
        match[1]
        for line in driver.stdout
        if (match := re.search(r"successfully on port (\d+)", line))
      )
      arguments = [
        "--headless=new",
        # A container's root has no sandbox, and few have /dev/shm.
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--proxy-server=127.0.0.1:9",
        f"--user-data-dir={profile}",
        *options,
      ]
      wanted = {
        "goog:chromeOptions": {"binary": binary, "args": arguments},
        "goog:loggingPrefs": {"browser": "ALL"},
      }
      base = f"http://127.0.0.1:{port}/session"
      session = send("POST", base, capabilities={"alwaysMatch": wanted})
      url = f"{base}/{session['sessionId']}"
      try:
        yield Browser(url)
      finally:
        send("DELETE", url)
    finally:
      driver.terminate()
