"""Wordpieces: ids, offsets into the original bytes, training, refusals."""

import itertools
import json
import string
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_text as tf_text

from realm_jax.text import vocabulary_training
from realm_jax.text.normalization import (
  Normalization,
  NormalizedTexts,
  character_table,
)
from realm_jax.text.vocabulary import SPECIAL_PIECES, VocabularyError
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.text.vocabulary_training import train_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary

# [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then from 5.
WORDS = (
  "the cafe istanbul fine office play ##ing ##ground 北 京 1 2 ##2 ##⁄ . , - "
  "t ##m ᄒ ##ᅡ ##ᆫ strasse a b e ##́"
).split()


@pytest.fixture(scope="module")
def vocabulary() -> WordpieceVocabulary:
  return WordpieceVocabulary([*SPECIAL_PIECES, *WORDS])


def shown(vocabulary: WordpieceVocabulary, text: str) -> list[tuple[str, str]]:
  """Each token's piece, and the original text that its bytes are."""
  tokens = vocabulary.tokenize_with_offsets([text])
  encoded = text.encode()
  return [
    (vocabulary.pieces[token], encoded[start:limit].decode())
    for token, (start, limit) in zip(
      tokens.token_ids, tokens.byte_ranges, strict=True
    )
  ]


def test_tokens_are_decoded_and_masks_are_special_pieces(vocabulary):
  ids = vocabulary.encode("The playground, Café - 12")
  assert vocabulary.decode([*ids, 0]) == "the playground , cafe - 12"
  for masked in ("[MASK] the fine [MASK][MASK].", "the fine", "[MASK]"):
    pieces = [vocabulary.pieces[i] for i in vocabulary.encode_masked(masked)]
    assert pieces == masked.replace("][", "] [").replace(".", " .").split()


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("The café.", [("the", "The"), ("cafe", "café"), (".", ".")]),
    ("İstanbul the", [("istanbul", "İstanbul"), ("the", "the")]),
    ("北京 the", [("北", "北"), ("京", "京"), ("the", "the")]),
    ("the\x00the", [("the", "the"), ("the", "the")]),
    ("p\u00adlaying", [("play", "p\u00adlay"), ("##ing", "ing")]),
    (
      "the 😀, the",
      [("the", "the"), ("[UNK]", "😀"), (",", ","), ("the", "the")],
    ),
    ("Straße", [("strasse", "Straße")]),
    # Many pieces of one character: each shows the whole of it.
    ("½ a", [("1", "½"), ("##⁄", "½"), ("##2", "½"), ("a", "a")]),
    ("한", [("ᄒ", "한"), ("##ᅡ", "한"), ("##ᆫ", "한")]),
    ("", []),
  ],
)
def test_offsets_are_into_the_text_as_written(vocabulary, text, expected):
  assert shown(vocabulary, text) == expected


@pytest.fixture(scope="module")
def cased() -> WordpieceVocabulary:
  pieces = "A a ##a é ##é e ##e ก ##ก the The 北".split()
  return WordpieceVocabulary([*SPECIAL_PIECES, *pieces])


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    (
      "The the É é",
      [("The", "The"), ("the", "the"), ("[UNK]", "É"), *[("é",) * 2]],
    ),
    # Control characters are ignored, and ideographs are words.
    ("\ufeffa\u200ca北A", [("a", "a"), ("##a", "a"), ("北", "北"), ("A", "A")]),
    # A word has at most 100 characters, in whichever script.
    ("ก" * 100, [("ก", "ก")] + [("##ก", "ก")] * 99),
    (
      "the " + "ก" * 101 + "北",
      [("the",) * 2, ("[UNK]", "ก" * 101), ("北",) * 2],
    ),
  ],
)
def test_a_cased_vocabulary(cased, text, expected):
  assert shown(cased, text) == expected
  pieces = [cased.pieces[i] for i in cased.encode(text)]
  assert pieces == [piece for piece, _ in expected]


def test_tokens_of_many_languages_are_those_of_transformers():
  folder = Path(__file__).parents[1] / "golden" / "multilingual"
  words = read_vocabulary(folder / "vocab.txt")
  expected = json.loads((folder / "expected.json").read_text("utf-8"))
  texts = [text for text, _ in expected]
  tokens = words.tokenize_with_offsets(texts)
  rows = np.split(tokens.token_ids, tokens.row_offsets[1:-1])
  for row, (text, pieces) in zip(rows, expected, strict=True):
    assert [words.pieces[i] for i in row] == pieces.split(), text


_NORMALIZATIONS = (
  Normalization("bert"),
  Normalization("bert", lowercase=True, strip_accents=False),
  Normalization("bert", lowercase=False, strip_accents=False),
)


def test_words_in_all_of_unicode_are_those_of_berts_tokenizers():
  path = Path(__file__).parents[1] / "golden" / "unicode" / "expected.json"
  texts, *expected = zip(*json.loads(path.read_text("utf-8")), strict=True)
  for normalization, words in zip(_NORMALIZATIONS, expected, strict=True):
    # Every word is a piece.
    pieces = dict.fromkeys([*SPECIAL_PIECES, *itertools.chain(*words)])
    vocabulary = WordpieceVocabulary(pieces, normalization)
    for text, expected_words in zip(texts, words, strict=True):
      ids = vocabulary.encode(text)
      assert [vocabulary.pieces[i] for i in ids] == expected_words, ascii(text)


def _normalized(normalized: NormalizedTexts) -> list[str]:
  text = "".join(map(chr, normalized.codes))
  return [text[a:b] for a, b in itertools.pairwise(normalized.bounds.tolist())]


def test_every_character_is_as_in_tensorflow_text():
  """With each Python, whichever Unicode it has."""
  every = [*map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1)))]
  folding = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
  expected = [text.decode() for text in folding.normalize(every).numpy()]
  assert _normalized(character_table(Normalization()).normalize(every)) == (
    expected
  )
  # What is between two letters is a part of a word, a word, or no word.
  table = character_table(_NORMALIZATIONS[-1])
  between = table.normalize([f"b{character}b" for character in every])
  splitter = tf_text.FastWordpieceTokenizer(["[UNK]", "A"])
  _, starts, _ = between.words()
  lengths = splitter.tokenize(_normalized(between)).row_lengths()
  num_words = np.diff(np.searchsorted(starts, between.bounds))
  np.testing.assert_array_equal(num_words, lengths)


# A soft hyphen, an empty space, marks of direction, a byte order mark.
_INVISIBLE = "\u00ad\u200b\u200e\u202e\ufeff"


@pytest.mark.parametrize("normalization", [Normalization(), *_NORMALIZATIONS])
@pytest.mark.parametrize("word", ["Zo\u00eb", "Zoe\u0308", "a\u00df", "\u00bd"])
def test_ranges_begin_and_end_at_visible_characters(normalization, word):
  characters = "Zzoe\u00eb\u0308as\u00df12\u2044\u00bd"
  pieces = [piece for c in characters for piece in (c, f"##{c}")]
  words = WordpieceVocabulary([*SPECIAL_PIECES, *pieces], normalization)
  for hidden, place in itertools.product(_INVISIBLE, range(len(word) + 1)):
    written = word[:place] + hidden + word[place:]
    text = f"a {written} a"
    assert words.encode(text) == words.encode(f"a {word} a")
    tokens, encoded = words.tokenize_with_offsets([text]), text.encode()
    ranges = tokens.byte_ranges[1:-1]
    for start, limit in ranges:
      shown = encoded[start:limit].decode()
      assert shown.strip(_INVISIBLE) == shown != "", ascii(text)
    whole = encoded[ranges[0, 0] : ranges[-1, 1]].decode()
    assert whole == written.strip(_INVISIBLE)


def test_a_trained_vocabulary_keeps_characters_and_uses_its_slots():
  ideographs = [chr(0x4E00 + i) for i in range(1200)]
  texts = ["".join(ideographs), "É été ภาษาไทยเขียนติดกัน " * 3, "한국어 かな"]
  vocabulary = WordpieceVocabulary(train_vocabulary(texts, 1500, cased=True))
  assert vocabulary.cased
  for text in texts:
    assert vocabulary.unk_id not in vocabulary.encode(text)
  assert {"É", "##é", "ไ"} <= {*vocabulary.pieces}
  assert not [p for p in vocabulary.pieces if p == "##" + ideographs[0]]
  # Too few slots: the commonest characters have them all.
  texts += ["".join(ideographs[:300])]
  small = WordpieceVocabulary(train_vocabulary(texts, 600, cased=True))
  assert small.size == 600
  assert {*ideographs[:300]} <= {*small.pieces}


def test_a_trained_vocabulary_knows_its_script_and_ascii():
  words = WordpieceVocabulary(train_vocabulary(["the house"], 200))
  assert words.notes("the house!") == []
  for text in ("北京 1987?", "ДОМ the"):
    assert "the run does not know: " in words.notes(text)[0]
  words.require_known("ДОМ the")
  with pytest.raises(ValueError, match="Chinese"):
    words.require_known("北京 1987?")
  for texts in (["ab ab cd ad"], ["a"]):
    words = WordpieceVocabulary(train_vocabulary(texts, 200))
    typed = 'Who wrote "C++" in 1985, and where? ({x|y}~z^2 @ #7 & $5 = 50%!)'
    assert words.unk_id not in words.encode(typed)


def test_of_very_many_words_the_commonest_are_learned_from(monkeypatch):
  """As of a corpus as large as Wikipedia."""
  rng = np.random.default_rng(0)
  letters = rng.choice([*string.ascii_lowercase], (1500, 8))
  times = 3000 // np.arange(1, 1501)
  words = ["".join(row) for row in letters]
  texts = [f"{word} " * n for word, n in zip(words, times, strict=True)]
  whole = train_vocabulary(texts, 700)
  monkeypatch.setattr(vocabulary_training, "_MOST_WORDS", 1000)
  monkeypatch.setattr(vocabulary_training, "_MOST_PARTS", 36 * 900)
  learn, thresholds = vocabulary_training.learner.learn, []

  def counted(counts, *arguments, upper_thresh, **settings):
    assert len(counts) <= 900
    thresholds.append(upper_thresh)
    return learn(counts, *arguments, upper_thresh=upper_thresh, **settings)

  monkeypatch.setattr(vocabulary_training.learner, "learn", counted)
  learned = train_vocabulary(texts, 700)
  assert len(learned) == 700 and {*words[:300]} <= {*learned}
  assert len({*learned} & {*whole}) > 550
  # Lower thresholds are known to be too low.
  assert min(thresholds) >= 3000 // 700
  assert len(thresholds) < 10


def test_a_vocabulary_that_cannot_serve_is_refused(tmp_path):
  with pytest.raises(VocabularyError, match="no words"):
    train_vocabulary(["", " \t"], 100)
  with pytest.raises(VocabularyError, match=r"8 pieces is too small.*take 109"):
    # 5 specials, 32 of punctuation, twice 36 letters and digits.
    train_vocabulary(["ab ab cd aδ"] * 3, 8)
  path = tmp_path / "vocab.txt"
  with pytest.raises(VocabularyError, match=r"no vocabulary at .*vocab"):
    read_vocabulary(path)
  for content, message in (
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"has no \[MASK\]"),
    (b"the\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\n", "'the' on its first line"),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "line 6 and again .* 8"),
    (b"[PAD]\n\xff\xfe", r"not UTF-8 \(byte 6\)"),
  ):
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=message):
      read_vocabulary(path)
  # Some editors write a byte order mark.
  path.write_bytes(b"\xef\xbb\xbf[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
  assert read_vocabulary(path).pieces[0] == "[PAD]"
