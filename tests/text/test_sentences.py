"""Where sentences begin and end, in bytes of the text."""

import pytest

from realm_jax.text.sentences import sentence_characters, sentence_ranges


@pytest.mark.parametrize(
  ("language", "text", "expected"),
  [
    ("es", "Los EE. UU. ganan. Él no.", ["Los EE. UU. ganan.", "Él no."]),
    ("en", "  Élan é.\n\n Ça y est 😀. F ", ["Élan é.", "Ça y est 😀.", "F"]),
    ("en", "Dr. A\nwrapped here.", ["Dr. A\nwrapped here."]),
    # Without PyThaiNLP: the first space after 80 characters, and a blank line.
    (
      "th",
      f"{'ก' * 50} {'ข' * 40} {'ค' * 9}\n\nง จ",
      [f"{'ก' * 50} {'ข' * 40}", "ค" * 9, "ง จ"],
    ),
  ],
)
def test_sentences_of_a_language(language, text, expected, monkeypatch):
  monkeypatch.setattr("realm_jax.text.sentences.splits_thai", lambda: False)
  encoded = text.encode()
  ranges = sentence_ranges(text, language)
  assert [encoded[s:t].decode() for s, t in ranges] == expected


def test_thai_sentences_are_those_of_pythainlp():
  pytest.importorskip("pycrfsuite")
  pytest.importorskip("pythainlp")
  text = "ฉันไปประชุมเมื่อวันที่ 11 มีนาคม แต่เขาไม่ไป"
  assert len(sentence_ranges(text, "th")) > 1


def test_sentences_of_a_long_text_are_in_their_places():
  # sentencex 1.0.32 drops a blank line of each 10 kB. Of one line of text, its
  # time grows with the square.
  for between in ("\n\n", " "):
    sentences = [f"“Élan {n} is long.” It is sentence {n}." for n in range(999)]
    text = between.join(sentences)
    parts = [text[start:limit] for start, limit in sentence_characters(text)]
    assert " ".join(parts) == " ".join(sentences)
    assert len(parts) == 2 * len(sentences)


def test_a_text_that_the_library_fails_on_is_one_sentence():
  # With sentencex 1.0.32, a rare line end before a period.
  assert sentence_characters(" B\t\x85.\u3000") == [(1, 5)]
