"""Building: what becomes of every document, and of builds that fail."""

import hashlib

import pytest

from realm_jax.corpus import CorpusError, InputError, block_builder
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.text.languages import LanguageError
from tests.corpus.conftest import ROWS, article, contents, text_of
from tests.json_lines import write_lines


def bodies(corpus: Corpus) -> list[str]:
  return [corpus.block(row).text for row in range(corpus.num_blocks)]


def test_an_overlong_sentence_or_title_is_cut_and_counted(build):
  text = "The river was the river of the café of Velt by the river. Ada."
  corpus = build([{"title": "Velt", "text": text}], block_length=10)
  assert bodies(corpus) == [
    "The river was the river of",
    "the café of Velt by the",
    "river. Ada.",
  ]
  assert corpus.block(2).sentences.tolist() == [[0, 2], [2, 4]]
  assert corpus.summary["cut_sentences"] == 1
  # A title takes at most half of a block.
  rows = [{"title": "Velt of the river by Ada Stone", "text": "Ada was in."}]
  corpus = build(rows, folder="title", block_length=11)
  block = corpus.block(0)
  assert (block.title, block.text) == (rows[0]["title"], "Ada was in.")
  assert (block.title_length, len(block.token_ids)) == (4, 8)
  assert corpus.summary["cut_titles"] == 1


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


def test_characters_that_nobody_sees_hide_no_span(build):
  """Soft hyphens, empty spaces and marks of direction, in and beside words."""
  rows = [
    {"title": "Velt", "text": "It was by A\u00adda Stone\u200b."},
    {"title": "Velt", "text": "It was by \u200eAda S\u00adtone\u200f ."},
  ]
  corpus = build(rows, tagger="rules", folder="hidden")
  assert corpus.summary["unaligned_spans"] == 0
  for block, name in zip(
    map(corpus.block, range(2)),
    ("A\u00adda Stone", "Ada S\u00adtone"),
    strict=True,
  ):
    ((first, last),) = block.salient_spans.tolist()
    ranges = block.byte_ranges
    shown = block.text.encode()[ranges[first, 0] : ranges[last - 1, 1]]
    assert shown.decode() == name


def test_what_makes_no_corpus_is_refused(build):
  velt = {"title": "Velt", "text": "Ada."}
  for rows, settings, error, message in (
    ([velt, velt], {}, InputError, r"jsonl:2 has the same id as .*:1;"),
    ([{**velt, "text": " "}], {}, InputError, "gave a block .*no words"),
    ([velt], {"vocab": "train:big"}, CorpusError, "'big' is not a number"),
    ([velt], {"block_length": 7}, CorpusError, "block_length=7 is too short"),
    ([velt], {"language": "german"}, LanguageError, "near it: de"),
  ):
    with pytest.raises(error, match=message):
      build(rows, **settings)


def test_blocks_and_the_fingerprint_are_of_the_contents(build, monkeypatch):
  rows = ROWS[:6]
  first = build(rows, block_length=12)
  monkeypatch.setattr(block_builder, "DOCUMENTS_PER_CHUNK", 2)
  again = build(rows, folder="again", block_length=12)
  assert again.fingerprint == first.fingerprint
  # Ids survive a rebuild in another order.
  turned = build(rows[::-1], folder="turned", block_length=12, shard_bytes=1)
  assert contents(turned) == contents(first)
  # A block's id is the first 8 bytes of BLAKE2b of "name\0document\0ordinal".
  digest = hashlib.blake2b(b"corpus\0d0\x000", digest_size=8).digest()
  assert first.block_ids[0] == int.from_bytes(digest, "little") // 2
  longer = build(rows, folder="longer", block_length=13)
  rows = [article("d0", seed=99), *rows[1:]]
  changed = build(rows, folder="changed", block_length=12)
  fingerprints = {c.fingerprint for c in (first, turned, longer, changed)}
  assert len(fingerprints) == 4


def test_documents_are_split_and_tagged_in_their_language(build, update):
  # Each document, and so each shard, has a name once.
  texts = [
    "诗人沈青禾生于江边。你好吗？",
    "读者喜欢沈青禾。",
    "后来沈青禾搬家。",
  ]
  rows = [{"title": "", "text": text} for text in texts]
  spanish = {"title": "Éa", "text": "Los EE. UU. son. Sí.", "language": "es"}
  corpus = build(
    [*rows, {"id": "b", **spanish}],
    vocab="train:300",
    language="zh",
    shard_bytes=1,
  )
  blocks = [*map(corpus.block, range(4))]
  assert [len(block.sentences) for block in blocks] == [2, 1, 1, 2]
  assert corpus.language == "zh"
  assert corpus.vocabulary.cased
  assert corpus.summary["languages"] == {"zh": 3, "es": 1}
  assert corpus.summary["unknown_tokens"] == 0
  # Phrases that recur are those of the whole corpus.
  assert corpus.summary["tagger"] == "recurring"
  assert len(corpus.shards) == 4
  for block in blocks[:3]:
    spans = block.salient_spans.tolist()
    assert "沈青禾" in [text_of(block, *span) for span in spans]
  update([{"id": "b", "title": "二", "text": "大。小。"}])
  changed = Corpus.open(corpus.source)
  assert changed.language == "zh"
  assert len(changed.block(3).sentences) == 2


def test_what_makes_a_stage_useless_is_said(tmp_path, vocab_file):
  def warnings(*rows):
    lines = write_lines(tmp_path / "rows.jsonl", rows)
    target = tmp_path / "c"
    summary = build_corpus(
      [str(lines)], target, vocab=vocab_file, overwrite=True
    )
    return "\n".join(summary.warnings())

  good = {"title": "Velt", "text": "Ada Stone was in Velt. Velt was in 1987."}
  assert warnings(good) == ""
  thai = {"title": "Velt", "text": "ภาษาไทย เขียนติดกัน"}
  told = warnings(good, thai)
  for part in ("1 in Thai", "[UNK]", "1.5 sentences"):
    assert part in told
  assert "salient spans" in warnings({**thai, "language": "th"})


def test_an_existing_directory_is_not_lost(build, tmp_path):
  rows = [{"title": "Velt", "text": "Ada was in."}]
  before = build(rows)
  with pytest.raises(CorpusError, match=r"holds a corpus.*--overwrite"):
    build(rows)
  # A failed build leaves the old one in place.
  with pytest.raises(InputError, match="no 'text'"):
    build([*rows, {}], overwrite=True)
  assert Corpus.open(before.source).fingerprint == before.fingerprint
  rows[0]["text"] = "Ada was by."
  assert bodies(build(rows, overwrite=True)) == ["Ada was by."]

  precious = tmp_path / "precious"
  precious.mkdir()
  (precious / "thesis.txt").touch()
  with pytest.raises(CorpusError, match="is no corpus; name a new"):
    build(rows, folder="precious", overwrite=True)
  assert (precious / "thesis.txt").exists()
