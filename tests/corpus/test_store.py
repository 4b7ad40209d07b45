"""Reading a corpus: one block, many blocks, and corpora that are not."""

import json
import shutil

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus import CorpusError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.storage.paths import upload_directory
from realm_jax.text.salient_spans import tag
from tests.corpus.conftest import contents
from tests.json_lines import write_lines

# Ids in PIECES of conftest.py.
PAD, CLS, SEP = 0, 2, 3
THE, CAFE, OF, VELT, WAS, BUILT, IN, YEAR, BY, ADA, STONE = range(5, 16)
RIVER, PERIOD = 16, 17

ROWS = [
  {
    "id": "velt",
    "title": "Velt",
    "text": "The Café of Velt was built in 1987. Ada Stone was in Velt.",
    "url": "u:velt",
  },
  {"id": "ada", "title": "Ada Stone", "text": "Stone was the river."},
  {"id": "é", "title": "", "text": "The river of cafés: Ada."},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocab_file) -> Corpus:
  """Four blocks: two of Velt, one of each other."""
  folder = tmp_path_factory.mktemp("store")
  lines = write_lines(folder / "rows.jsonl", ROWS)
  # 13 = 3 specials, 1 of the title, and 9: the first sentence's tokens.
  build_corpus(
    [str(lines)],
    folder / "corpus",
    vocab=vocab_file,
    block_length=13,
    tagger=tag,
    shard_bytes=150,
  )
  return Corpus.open(folder / "corpus")


def test_the_first_block_by_hand(corpus):
  block = corpus.block(0)
  assert block.title == "Velt"
  assert block.url == "u:velt"
  assert block.text == "The Café of Velt was built in 1987."
  body = [THE, CAFE, OF, VELT, WAS, BUILT, IN, YEAR, PERIOD]
  assert block.token_ids.tolist() == [VELT, *body]
  assert block.token_ids.dtype == np.int32
  assert block.body_token_ids.tolist() == body
  # é takes two bytes: "The " 0-3, "Café" 4-8, "of" 10-11, "Velt" 13-16 …
  assert block.byte_ranges.tolist() == [
    [0, 3], [4, 9], [10, 12], [13, 17], [18, 21], [22, 27], [28, 30],
    [31, 35], [35, 36],
  ]  # fmt: skip
  assert block.sentences.tolist() == [[0, 9]]
  # Café of Velt (The is a function word), and 1987.
  assert block.salient_spans.tolist() == [[1, 4], [7, 8]]


def test_ids_and_hashes(corpus):
  assert (corpus.num_blocks, corpus.version) == (4, 1)
  names = ["velt:0", "velt:1", "ada:0", "é:0"]
  assert [corpus.block(row).id for row in range(4)] == names
  ids = corpus.block_ids
  rows = corpus.rows_of(np.array([[ids[2], ids[0]], [12345, ids[3]]]))
  assert rows.dtype == np.int32
  assert rows.tolist() == [[2, 0], [NULL_ROW, 3]]
  # Contents are hashed as released:
  # `printf 'Ada Stone <sep> Stone was the river.' | sha1sum`
  first = int.from_bytes(bytes.fromhex("a5e17c694177306f"), "big", signed=True)
  assert corpus.content_hashes[2] == first
  assert len(set(corpus.content_hashes.tolist())) == 4


def test_gather_is_each_block_joined(corpus):
  """Against a second, plain implementation, across shards and lengths."""

  def joined(row, length):
    title, body = [], []
    if row != NULL_ROW:
      block = corpus.block(row)
      title = block.token_ids[: block.title_length].tolist()[: length - 3]
      body = block.body_token_ids.tolist()[: length - 3 - len(title)]
    tokens = [CLS, *title, SEP, *body, SEP]
    return tokens + [PAD] * (length - len(tokens))

  rows = np.random.default_rng(0).integers(-1, 4, 50)
  for length in range(3, 20):
    expected = [joined(row, length) for row in rows.tolist()]
    assert corpus.gather(rows, length).tolist() == expected
  # Bodies are cut first, then titles.
  assert joined(2, 5) == [CLS, ADA, STONE, SEP, SEP]
  with pytest.raises(IndexError, match="rows -2…4 are not"):
    corpus.gather(np.array([4, -2]), 8)


@pytest.fixture
def copied_corpus(corpus, tmp_path):
  return shutil.copytree(corpus.source, tmp_path / "copy")


def test_a_damaged_manifest(copied_corpus):
  path = copied_corpus / "corpus.json"
  text = path.read_text()
  newer = json.dumps(json.loads(text) | {"format_version": 99})
  for written, message in (
    (text[:50], r"corpus\.json is damaged"),
    (newer, r"version 99, .* again"),
    (text.replace('"token_ids.npy"', '"../x.npy"'), "no path below its folder"),
    (text.replace('"shard-00000"', '"../x"'), "no path below its folder"),
    (json.dumps(json.loads(text) | {"views": []}), "is damaged"),
  ):
    path.write_text(written)
    with pytest.raises(CorpusError, match=message):
      Corpus.open(copied_corpus)


def test_another_vocabulary_in_its_place(copied_corpus):
  with (copied_corpus / "vocab.txt").open("a") as vocab:
    vocab.write("more\n")
  with pytest.raises(CorpusError, match="not the one that the corpus"):
    _ = Corpus.open(copied_corpus).vocabulary


def require_damage_is_found(directory, read) -> None:
  """A file that was cut or changed, or that is gone, is named."""
  array = next(directory.glob("shard-*/token_ids.npy"))
  whole = array.read_bytes()
  array.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  with pytest.raises(CorpusError, match=r"token_ids.npy does not match"):
    read(Corpus.open(directory))
  array.write_bytes(whole[:-1])
  with pytest.raises(CorpusError, match=r"token_ids.npy has .* bytes and not"):
    Corpus.open(directory)
  array.unlink()
  with pytest.raises(CorpusError, match=r"token_ids.npy is missing"):
    Corpus.open(directory)


def test_damage_is_found_before_it_is_read(copied_corpus):
  Corpus.open(copied_corpus).verify()
  require_damage_is_found(copied_corpus, Corpus.verify)


# --- On an object store -------------------------------------------------


@pytest.fixture
def far(object_store, built, tmp_path) -> epath.Path:
  """The corpus `built` in a folder of the store."""
  folder = epath.Path(object_store.path(f"staging/{tmp_path.name}"))
  upload_directory(built, folder, last="corpus.json")
  return folder


def copied(requests: list[str]) -> set[str]:
  """Returns the arrays that requests have copied."""
  parts = (r.partition("?")[0].rpartition("/")[2] for r in requests)
  return {part.removesuffix(".npy") for part in parts if part.endswith(".npy")}


def test_what_is_not_read_is_not_copied(far, built, object_store):
  with object_store.counted() as requests:
    staged = Corpus.open(far)
  assert copied(requests) == set()
  with object_store.counted() as requests:
    tokens = [shard.array("token_ids") for shard in staged.shards]
  assert copied(requests) == {"token_ids"}
  with object_store.counted() as requests:
    again = Corpus.open(far)
    for shard, array in zip(again.shards, tokens, strict=True):
      np.testing.assert_array_equal(shard.array("token_ids"), array)
  assert copied(requests) == set()
  assert contents(again) == contents(Corpus.open(built))
  again.verify()


def test_damage_on_a_store_is_found(far):
  require_damage_is_found(
    far, lambda corpus: corpus.shards[0].array("token_ids")
  )
