"""Takes the picture of the page that README shows.

    python -m realm_jax.serve --model_dir=out/demo/open_qa &
    python -m tests.serving.picture --output=docs/images/page.png \
      --question="who is the employer of Jizeth?" \
      --title="Sunday Herald" --replace=Houldbank --with=Wouzcraft

A question is asked, a word of the passage with a title is replaced, and the
page is shown with both answers.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.serving import browser


def main(argv: Sequence[str] | None = None) -> None:
  """Takes a picture."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--url", default="http://127.0.0.1:8000")
  parser.add_argument("--question", required=True)
  parser.add_argument("--title", help="title of the passage to edit")
  parser.add_argument("--replace", help="a word of it")
  parser.add_argument("--with", dest="word", help="what stands there instead")
  parser.add_argument("--size", default="1280,1000", help="of the window")
  parser.add_argument("--dark", action="store_true")
  parser.add_argument("--output", type=Path, required=True)
  given = parser.parse_args(argv)
  options = [f"--window-size={given.size}"]
  if given.dark:
    options.append("--force-dark-mode")
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    browser.opened(Path(profile), *options) as page,
  ):
    page.open(given.url)
    page.wait(lambda: page.text("#runs"), "the page has loaded")
    page.type("#text", given.question + browser.ENTER)
    page.wait(lambda: page.text("#answer") + page.text("#error"), "an answer")
    if given.title:
      titles = page.texts(".block .title")
      card = f".block:nth-of-type({1 + titles.index(given.title)})"
      text = page.text(f"{card} .block-text")
      page.click(f"{card} .edit")
      page.type(f"{card} textarea", text.replace(given.replace, given.word))
      page.click(f"{card} .editor .primary")
      page.wait(lambda: page.text("#before"), "an answer after the edit")
    print(json.dumps(page.texts(".answer")), *page.console)
    page.screenshot(given.output)


if __name__ == "__main__":
  main()
