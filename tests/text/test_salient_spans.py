"""Dates, numbers and names, found by rules."""

import time

import pytest

from realm_jax.text.salient_spans import find_tagger, tag


def tagged(text: str, title: str = "") -> list[tuple[str, str]]:
  encoded = text.encode()
  return [(encoded[s:t].decode(), kind) for s, t, kind in tag(text, title)]


def texts(kind: str, text: str, title: str = "") -> list[str]:
  return [span for span, span_kind in tagged(text, title) if span_kind == kind]


DATES = (
  "12 March 1987|March 12, 1987|March 12 , 1987|Monday, 12 March 1987|March 12|"
  "12th of March 1987|12 March|March 1987|Sept. 1987|1987-03-12|3/12/1987|1987|"
  "1990s|44 BC|AD 70|19th century|October|Tuesday"
).split("|")


@pytest.mark.parametrize("date", DATES)
def test_dates(date):
  assert tagged(f"they met on {date} and left") == [(date, "date")]


@pytest.mark.parametrize(
  ("text", "numbers"),
  [
    ("it has 8,648 rooms and 12 doors", ["8,648", "12"]),
    ("the 42nd time, 3.25 km", ["42nd", "3.25"]),
    ("the 802.11a standard of x86 v1.2.3", []),
    ("a (24 in) rod", ["24"]),
  ],
)
def test_numbers(text, numbers):
  assert texts("number", text) == numbers


@pytest.mark.parametrize(
  ("text", "names"),
  [
    ("she moved to New York in spring", ["New York"]),
    ("by J. R. R. Tolkien and George W. Bush", [
      "J. R. R. Tolkien", "George W. Bush"
    ]),
    ("the Isle of the Dead", ["Isle of the Dead"]),
    ("of St. Louis and Dr. Smith", ["St. Louis", "Dr. Smith"]),
    ("the U.S. Army and AT&T", ["U.S. Army", "AT&T"]),
    ("in Newton's laws by O'Brien", ["Newton", "O'Brien"]),
    ("the Anglo-Saxon and the non-U.S. kind", ["Anglo-Saxon"]),
    ("the Čapek family of Łódź and Ångström", ["Čapek", "Łódź", "Ångström"]),
    ("they told us of the WHO and who left the US", ["WHO", "US"]),
    ("the river Vel.\nKar is near", ["Vel"]),
  ],
)  # fmt: skip
def test_names_within_sentences(text, names):
  assert texts("name", text) == names


@pytest.mark.parametrize(
  ("text", "title", "names"),
  [
    # A capital that every sentence has says nothing.
    ("Penguins swim. Yesterday it rained.", "", []),
    # Seen with a capital inside another sentence, or in the title.
    ("Velt is far. They saw Velt.", "", ["Velt", "Velt"]),
    ("Velt is far.", "Velt (city)", ["Velt"]),
    # A title's first word has a capital too: small letters decide.
    ("Penguins swim. All penguins do.", "Penguins", []),
    # A function word is dropped from the front, and what follows stays.
    ("In Velt it rained.", "", ["Velt"]),
    ("The Royal Navy sailed.", "", ["Royal Navy"]),
    ("New York is new. In New York it rained.", "", ["New York", "New York"]),
    ("In The Hague they met.", "", ["The Hague"]),
    ("I'm here. It's Velt.", "", ["Velt"]),
    # A whole name that stands elsewhere, or is the title.
    ("First Aid came. So did first Velt and First Aid.", "", [
      "First Aid", "Velt", "First Aid"
    ]),
    # An ordinary word, as the text itself shows.
    ("Former President Velt spoke. He is a former spy.", "", [
      "President Velt"
    ]),
    # A quotation opens like a sentence.
    ('They sang "Home is far" and "Under Velt".', "", ["Velt"]),
  ],
)  # fmt: skip
def test_names_at_the_start_of_sentences(text, title, names):
  assert texts("name", text, title) == names


def test_taggers_by_name():
  assert find_tagger("none") is None
  # With a sentence of its own, UU is no sign of a name.
  text = "Ana vive en EE. UU. con Leo."
  names = [
    [
      text.encode()[s:t].decode()
      for s, t, _ in find_tagger("rules", code)(text, "")
    ]
    for code in ("en", "es")
  ]
  assert names == [["EE", "Leo"], ["EE", "UU", "Leo"]]
  assert find_tagger("realm_jax.text.salient_spans.tag") is tag
  for name in ("nowhere.tag", "roles", "math.pi"):
    with pytest.raises(ValueError, match=name):
      find_tagger(name)


@pytest.mark.parametrize(
  ("language", "tagger", "part"),
  [
    ("en", "rules", "Ab\t1\t"),
    ("en", "rules", '"Ab c." '),
    ("en", "rules", "“a "),
    ("zh", "rules", "中国。"),
    ("th", "recurring", "กา"),
  ],
)
def test_time_grows_no_faster_than_a_text(language, tagger, part):
  """Of one line as long as a table, a log or a book."""
  find_spans = find_tagger(tagger, language)
  assert find_spans is not None

  def seconds(size: int) -> float:
    text, times = part * (size // len(part)), list[float]()
    for _ in range(3):
      before = time.thread_time()
      find_spans(text, "")
      times.append(time.thread_time() - before)
    return min(times)

  # Sixteen times as long it would be with a square.
  assert seconds(100_000) < 9 * max(seconds(25_000), 0.01)
