"""The tagger finds what transformers' pipeline finds, in any company."""

import json
import shutil
import string

import numpy as np
import pytest

from realm_jax.storage.json_files import write_json
from realm_jax.text import salient_spans
from realm_jax.text.bert_tagger import entities, parse_labels
from realm_jax.text.salient_spans import find_tagger
from realm_jax.weights import WeightsError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["uncased", "cased"])
def golden(request, project_dir):
  """A tiny random model: see `tests/golden/make_hf.py`."""
  return project_dir / "tests" / "golden" / "hf_tagger" / request.param


@pytest.fixture(scope="module")
def sentences(golden):
  text = (golden / "expected.json").read_text(encoding="utf-8")
  return {row["sentence"]: row["entities"] for row in json.loads(text)}


@pytest.fixture(scope="module")
def tagger(golden):
  return find_tagger(f"bert:{golden}")


def _entities(sentence, entities):
  """What transformers found, in bytes of the sentence."""
  return [
    (
      *(len(sentence[:place].encode()) for place in (start, limit)),
      parse_labels(["O", kind])[1][0],
    )
    for start, limit, kind in entities
  ]


def test_entities_are_those_of_transformers_pipeline(tagger, sentences):
  expected = [_entities(*row) for row in sentences.items()]
  assert len({kind for row in expected for *_, kind in row}) == 4
  assert tagger.entities(list(sentences)) == expected


def test_a_text_is_tagged_alike_in_any_company(tagger, sentences):
  """Among others, alone, and as a part of a longer text."""
  texts = list(sentences)
  alone = [tagger(text, "") for text in texts]
  among = tagger.tag_many(texts[::-1] * 40, [""] * len(texts) * 40)
  assert list(among) == alone[::-1] * 40
  first, second = texts[0], texts[2]
  both = tagger(f"{first}.\n\n{second}", "")
  shift = len(first.encode()) + 3
  tail = [(s + shift, t + shift, k) for s, t, k in tagger(second, "")]
  assert [span for span in both if span.start >= shift] == tail


def test_a_sentence_that_is_too_long_is_read_in_parts(tagger):
  """Rows of this model have 64 tokens, and a letter is a token."""
  letters = [*(string.ascii_lowercase * 6)]
  whole, first = tagger.entities([" ".join(letters), " ".join(letters[:62])])
  assert len(first) > 5
  assert whole[: len(first) - 1] == first[:-1]
  assert whole[-1].start > 2 * 62


def test_dates_are_those_of_the_rules_outside_of_entities(tagger):
  text = "the ship sailed on 3 May 1901 and in the winter of 1902"
  entities = tagger.entities([text])[0]
  spans = tagger(text, "")
  assert spans == sorted(spans)
  assert [span for span in spans if span.kind != "date"] == entities
  dates = salient_spans.dates(text, "")
  assert [text[s:t] for s, t, _ in dates] == ["3 May 1901", "1902"]
  free = [
    date
    for date in dates
    if all(date.limit <= s or t <= date.start for s, t, _ in entities)
  ]
  assert [span for span in spans if span.kind == "date"] == free


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"architectures": ["BertForMaskedLM"]}, "BertForTokenClassification"),
    ({"id2label": {"0": "O", "2": "B-PER"}}, "want a label for each id"),
    ({"id2label": {"0": "O", "1": "I-PER"}}, r"classifier\.weight \[9, 24\]"),
    ({"hidden_size": 12}, "where encoder/word_embeddings wants"),
  ],
  ids=str,
)
def test_a_directory_of_no_tagger_is_refused(
  golden, tmp_path, changes, message
):
  directory = shutil.copytree(golden, tmp_path / "model")
  config = json.loads((golden / "config.json").read_text(encoding="utf-8"))
  write_json(directory / "config.json", config | changes)
  with pytest.raises(WeightsError, match=message):
    find_tagger(f"bert:{directory}")


_LABELS = "O B-PER I-PER B-ORG I-ORG S-LOC E-PER DATE".split()


@pytest.mark.parametrize(
  ("words", "sentences", "expected"),
  [
    ("O O", "00", []),
    ("B-PER I-PER O", "000", [(0, 1, "person")]),
    # Two entities side by side.
    ("B-PER B-PER I-PER", "000", [(0, 0, "person"), (1, 2, "person")]),
    ("B-PER I-ORG", "00", [(0, 0, "person"), (1, 1, "organization")]),
    # IOB1 begins with B- only after another of the kind.
    ("O I-PER I-PER O I-PER", "00000", [(1, 2, "person"), (4, 4, "person")]),
    ("I-PER B-PER", "00", [(0, 0, "person"), (1, 1, "person")]),
    # BIOES, and a label without a prefix.
    ("B-PER I-PER E-PER S-LOC S-LOC", "00000", [
      (0, 2, "person"), (3, 3, "location"), (4, 4, "location")
    ]),
    ("DATE DATE", "00", [(0, 1, "date")]),
    # No entity leaves its sentence.
    ("B-PER I-PER I-PER", "122", [(0, 0, "person"), (1, 2, "person")]),
  ],
)  # fmt: skip
def test_words_of_one_kind_are_one_entity(words, sentences, expected):
  labels = np.array([_LABELS.index(name) for name in words.split()])
  numbers = np.array([int(digit) for digit in sentences])
  assert list(entities(labels, numbers, parse_labels(_LABELS))) == expected
