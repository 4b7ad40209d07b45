"""Makes docs/images/page.png: the page of a demo, with a fact edited.

    .venv/bin/python -m tests.serving.picture out/demo

Needs chromium and a finished demo.
"""

import base64
import itertools
import sys
import tempfile
from pathlib import Path

import realm_jax
from realm_jax.inputs.question_files import read_json_lines
from realm_jax.serving.app import PageApp
from realm_jax.serving.service import Service
from tests.serving import browser, client

_PICTURE = Path("docs/images/page.png")
_QUESTION, _INSTEAD = "which firm gives Goudis a job?", "Wouzcraft"


def main(demo_dir: Path) -> None:
  """Asks a question, edits the passage of the answer, and takes the picture."""
  run, masked_run = map(
    realm_jax.load, (demo_dir / "open_qa", demo_dir / "realm")
  )
  lines = read_json_lines(demo_dir / "world/questions-test.jsonl")
  examples = [one.question for one in itertools.islice(lines, 4)]
  best = run.ask(_QUESTION).answers[0]
  edited = best.block.text.replace(best.text, _INSTEAD)
  service = Service(run, masked_run, examples=examples)
  with (
    tempfile.TemporaryDirectory() as folder,
    client.served(PageApp(service)) as port,
    browser.opened(Path(folder)) as page,
  ):
    size = {"width": 1280, "height": 1013, "deviceScaleFactor": 1}
    page.send("Emulation.setDeviceMetricsOverride", **size, mobile=False)
    page.open(f"http://127.0.0.1:{port}/?q={_QUESTION}")
    page.wait(lambda: page.text("#answer"), "it is answered")
    browser.edit_passage(page, best.block.id, edited)
    page.run("window.scrollTo(0, 0)")
    picture = page.send("Page.captureScreenshot", format="png")["data"]
    _PICTURE.write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
  main(Path(sys.argv[1]))
