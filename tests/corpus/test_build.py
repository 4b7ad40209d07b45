"""Building: what becomes of every document, and of builds that fail."""

import collections
import hashlib
import importlib.util

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from realm_jax.corpus import CorpusError, InputError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.summary import BuildSummary
from realm_jax.storage.atomic import TargetError
from realm_jax.text.languages import LanguageError
from realm_jax.text.salient_spans import tag
from tests.corpus.conftest import write_lines
from tests.corpus.updated import contents


def bodies(corpus: Corpus) -> list[str]:
  return [corpus.block(row).body for row in range(corpus.num_blocks)]


def test_an_overlong_sentence_is_cut_and_counted(build):
  text = "The river was the river of the café of Velt by the river. Ada."
  corpus = build([{"title": "Velt", "text": text}], block_length=10)
  assert bodies(corpus) == [
    "The river was the river of",
    "the café of Velt by the",
    "river. Ada.",
  ]
  assert corpus.block(2).sentences.tolist() == [[0, 2], [2, 4]]
  assert corpus.summary["cut_sentences"] == 1


def test_a_title_takes_at_most_half_of_a_block(build):
  title = "Velt of the river by Ada Stone"
  corpus = build([{"title": title, "text": "Ada was in."}], block_length=11)
  block = corpus.block(0)
  assert (block.title, block.body) == (title, "Ada was in.")
  assert (block.title_length, len(block.token_ids)) == (4, 8)
  assert corpus.summary["cut_titles"] == 1


def test_nothing_is_dropped_silently(build):
  rows = [
    {"title": "List of rivers", "text": "Velt."},
    {"title": "Velt (disambiguation)", "text": "Velt."},
    {"title": "Index of Velt", "text": "Velt."},
    {"title": "Ada", "text": " \n"},
    {"title": "A list of", "text": "Ada &lt; Velt."},
  ]
  corpus = build(rows, drop_titles=["wikipedia", "Ind"])
  assert corpus.summary["documents"] == corpus.summary["blocks"] == 1
  assert corpus.summary["skipped"] == {
    "title with 'List of'": 1,
    "title with '(disambiguation)'": 1,
    "title with 'Index of'": 1,
    "no words in the text": 1,
  }
  assert bodies(corpus) == ["Ada < Velt."]
  corpus = build(rows, folder="all", unescape_html=False)
  assert corpus.summary["documents"] == 4
  assert bodies(corpus)[-1] == "Ada &lt; Velt."


def test_spans_are_inside_one_sentence_and_counted(build):
  def tagger(text, title):
    assert title == "Velt"
    # From the end of one sentence into the next; half a word; a whole one.
    return [(0, 3, "word"), (4, 16, "across"), (17, 19, "half")]

  text = "Ada was in. Velt was by."
  corpus = build([{"title": "Velt", "text": text}], tagger=tagger)
  assert corpus.block(0).salient_spans.tolist() == [[0, 1]]
  assert corpus.summary["salient_spans"] == {"word": 1, "across": 1, "half": 1}
  assert corpus.summary["unaligned_spans"] == 2


def test_what_makes_no_corpus_is_refused(build):
  velt = {"title": "Velt", "text": "Ada."}
  for rows, settings, error, message in (
    ([velt, velt], {}, InputError, r"jsonl:2 has the same id as .*:1;"),
    ([{**velt, "text": " "}], {}, InputError, "gave a block .*no words"),
    ([], {}, InputError, "there are no lines"),
    ([velt], {"vocab": "train:big"}, CorpusError, "'big' is not a number"),
    ([velt], {"block_length": 7}, CorpusError, "block_length=7 is too short"),
    ([velt], {"language": "german"}, LanguageError, "near it: de"),
    ([{**velt, "language": "deu"}], {}, InputError, r":1: 'language': .* de;"),
    ([velt], {"cased": True}, CorpusError, "pieces have capitals"),
  ):
    with pytest.raises(error, match=message):
      build(rows, **settings)


def test_block_ids_survive_a_rebuild_in_another_order(build):
  rows = [
    {"id": name, "title": "Velt", "text": "Ada was in. Velt was by." * 2}
    for name in "abc"
  ]
  before = build(rows, block_length=12)
  after = build(rows[::-1], folder="after", block_length=12, shard_bytes=1)
  assert contents(after) == contents(before)
  # A block's id is the first 8 bytes of BLAKE2b of "name\0document\0ordinal".
  digest = hashlib.blake2b(b"corpus\0a\x000", digest_size=8).digest()
  assert before.block_ids[0] == int.from_bytes(digest, "little") // 2


def test_the_fingerprint_is_of_the_contents(build):
  text = "Ada was in. Velt was by."

  def fingerprint(folder, text=text, block_length=16):
    rows = [{"title": "Velt", "text": text}]
    return build(rows, folder=folder, block_length=block_length).fingerprint

  first = fingerprint("a")
  assert fingerprint("b") == first
  assert fingerprint("c", block_length=20) != first
  assert fingerprint("d", text=text.replace("by", "of")) != first


def test_documents_are_split_in_their_language(build, update):
  rows = [
    {"title": "一", "text": "北京很大。你好吗？"},
    {
      "id": "b",
      "title": "Éa",
      "text": "Los EE. UU. son. Sí.",
      "language": "es",
    },
  ]
  corpus = build(rows, vocab="train:300", language="zh")
  assert [len(corpus.block(row).sentences) for row in (0, 1)] == [2, 2]
  assert corpus.language == "zh"
  assert corpus.vocabulary.cased
  assert corpus.summary["languages"] == {"zh": 1, "es": 1}
  assert corpus.summary["unknown_tokens"] == 0
  update([{"id": "b", "title": "二", "text": "大。小。"}])
  changed = Corpus.open(corpus.source)
  assert changed.language == "zh"
  assert len(changed.block(1).sentences) == 2


def test_what_makes_a_stage_useless_is_said(tmp_path, vocab_file):
  def warnings(rows, **arguments):
    lines = write_lines(tmp_path / "rows.jsonl", rows)
    summary = build_corpus(
      [str(lines)],
      tmp_path / "c",
      vocab=vocab_file,
      overwrite=True,
      **arguments,
    )
    return "\n".join(summary.warnings())

  good = {"title": "Velt", "text": "Ada Stone was in Velt. Velt was in 1987."}
  assert warnings([good]) == ""
  thai = {"title": "Velt", "text": "ภาษาไทย เขียนติดกัน"}
  told = warnings([good, thai])
  for part in ("1 in Thai", "[UNK]", "1.5 sentences"):
    assert part in told
  assert "salient spans" in warnings([{**thai, "language": "th"}])


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_segmenter_that_is_missing_is_named(monkeypatch, is_missing):
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda name: None if is_missing else name
  )
  summary = BuildSummary(
    languages=collections.Counter(["zh"]), tagger="recurring"
  )
  said = [told for told in summary.warnings() if "jieba" in told]
  assert len(said) == is_missing
  # Nobody needs it for another tagger.
  summary.tagger = "rules"
  assert "jieba" not in "".join(summary.warnings())


DOCUMENT_TEXT = st.lists(
  st.sampled_from(
    "the café velt ada. River! 1987 (x) é 北 \n\n ½ ﬁ 😀 st. U.S. … of".split(
      " "
    )
  ),
  min_size=1,
  max_size=60,
).map(" ".join)


@pytest.mark.slow
@hypothesis.settings(max_examples=8)  # Of many documents each.
@hypothesis.given(
  st.lists(DOCUMENT_TEXT, min_size=1, max_size=15), st.integers(8, 40)
)
def test_blocks_are_the_text_cut(vocab_file, tmp_path_factory, texts, length):
  folder = tmp_path_factory.mktemp("property")
  # One document surely has words.
  lines = write_lines(
    folder / "rows.jsonl",
    (
      {"id": str(i), "title": "Velt", "text": text}
      for i, text in enumerate([*texts, "Ada."])
    ),
  )
  build_corpus(
    [str(lines)],
    folder / "corpus",
    vocab=vocab_file,
    block_length=length,
    tagger=tag,
    shard_bytes=300,
  )
  corpus = Corpus.open(folder / "corpus")
  assert corpus.lengths.max() <= length
  found: dict[str, str] = {}
  found_ids: dict[str, list[int]] = {}
  for row in range(corpus.num_blocks):
    body, ranges = corpus.block(row).body, corpus.block(row).byte_ranges
    assert body == body.strip()
    encoded = body.encode()
    assert ranges.min() >= 0
    assert ranges.max() <= len(encoded)
    # Every token's bytes are whole characters of the body.
    for start, limit in ranges.tolist():
      assert encoded[start:limit].decode()
    sentences = corpus.block(row).sentences
    assert sentences[0, 0] == 0
    assert sentences[-1, 1] == len(ranges)
    np.testing.assert_array_equal(sentences[1:, 0], sentences[:-1, 1])
    for start, limit in corpus.block(row).salient_spans:
      assert any(s <= start < limit <= t for s, t in sentences)
    name = corpus.block(row).document_id
    assert corpus.block(row).ordinal == 0 or name in found
    found[name] = found.get(name, "") + body
    found_ids.setdefault(name, []).extend(corpus.block(row).body_token_ids)
  tokens = corpus.vocabulary.tokenize_with_offsets(texts)
  token_ids = np.split(tokens.token_ids, tokens.row_offsets[1:-1])
  for i, (text, ids) in enumerate(zip(texts, token_ids, strict=True)):
    # Cutting loses white space and nothing else.
    assert "".join(found.get(str(i), "").split()) == "".join(text.split())
    assert found_ids.get(str(i), []) == ids.tolist()


def test_an_existing_directory_is_not_lost(build, tmp_path, vocab_file):
  rows = [{"title": "Velt", "text": "Ada was in."}]
  before = build(rows)
  with pytest.raises(CorpusError, match=r"holds a corpus.*--overwrite"):
    build(rows)
  # A failed build leaves the old one in place.
  with pytest.raises(InputError, match="no 'title'"):
    build([*rows, {}], overwrite=True)
  assert Corpus.open(before.source).fingerprint == before.fingerprint
  rows[0]["text"] = "Ada was by."
  assert bodies(build(rows, overwrite=True)) == ["Ada was by."]

  precious = tmp_path / "precious"
  precious.mkdir()
  (precious / "thesis.txt").touch()
  lines = write_lines(tmp_path / "rows.jsonl", rows)
  with pytest.raises(CorpusError, match="is no corpus; name a new"):
    build_corpus([str(lines)], precious, vocab=vocab_file, overwrite=True)
  assert (precious / "thesis.txt").exists()
  with pytest.raises(TargetError, match="is a file"):
    build_corpus([str(lines)], lines, vocab=vocab_file)
