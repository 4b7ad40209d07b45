"""The files and sections that documents link to exist."""

import re
from pathlib import Path

import pytest

PROJECT_DIR = Path(__file__).resolve().parent.parent
DOCUMENTS = [
  path.relative_to(PROJECT_DIR).as_posix()
  for folder in (".", "benchmarks", "docs")
  for path in sorted((PROJECT_DIR / folder).glob("*.md"))
]


def _anchors(document: Path) -> set[str]:
  """The anchors of a document's headings, as GitHub makes them."""
  text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.*)$", text, re.M)
  }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str):
  path = PROJECT_DIR / document
  missing = []
  links = re.findall(r"\]\(([\w./-]*)(?:#([^)]*))?\)", path.read_text())
  for page, anchor in links:
    target = path.parent / page if page else path
    if not target.exists() or (anchor and anchor not in _anchors(target)):
      missing.append(f"{page}#{anchor}")
  assert not missing, f"{document} links to what is not there: {missing}"
