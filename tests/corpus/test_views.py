"""Views of a corpus: they are the texts, and they stay with them."""

import shutil
import signal
import sys

import numpy as np
import pytest

from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.update import add_views, update_corpus
from realm_jax.errors import RealmError
from realm_jax.text.sentencepieces import read_sentencepieces
from tests.corpus.conftest import ROWS, article, files, require_consistent
from tests.corpus.test_update import change_and_die, require_all_named
from tests.json_lines import write_lines
from tests.text.test_sentencepieces import MODEL

T5 = f"t5:{MODEL}"


def require_views(corpus: Corpus, *names: str) -> None:
  """Each view of these has the titles and bodies of all blocks."""
  corpus.verify()
  assert [*corpus.views] == [*names]
  rows = np.array([*range(corpus.num_blocks), NULL_ROW]).reshape(1, -1)
  blocks = [corpus.block(row) for row in range(corpus.num_blocks)]
  for name in names:
    view = corpus.view(name)
    encode = view.vocabulary.encode
    texts = [(encode(b.title), encode(b.text)) for b in blocks]
    for length in (1, 2, 5, 9, 200):
      blocks_of_view = view.gather(rows, length)
      assert blocks_of_view.token_ids.dtype == np.int32
      cut = [t[: length // 2] for t, _ in texts]
      ids = [(t + b)[:length] for t, (_, b) in zip(cut, texts, strict=True)]
      assert blocks_of_view.token_ids.tolist() == [
        [i + [0] * (length - len(i)) for i in [*ids, []]]
      ]
      assert blocks_of_view.title_lengths.tolist() == [[*map(len, cut), 0]]
      assert blocks_of_view.lengths.tolist() == [[*map(len, ids), 0]]


@pytest.mark.slow
def test_built_or_added_with_any_workers_a_view_is_the_same(build):
  settings = {"block_length": 16, "shard_bytes": 450}
  views = [T5, "own:train:90"]
  corpus = build(ROWS, view=views, **settings)
  require_views(corpus, "t5", "own")
  model = corpus.source / "views" / "t5.model"
  assert model.read_bytes() == MODEL.read_bytes()
  shard = corpus.shards[0]
  assert shard.array("t5.token_ids").dtype == np.uint16
  plain = build(ROWS, folder="plain", **settings)
  opened = Corpus.open(plain.source)
  for name, workers in (("t5", 2), ("own", 1)):
    model = f"{name}:{corpus.source}/views/{name}.model"
    add_views(plain.source, [model], workers=workers)
  assert files(plain.source) == files(corpus.source)
  # Runs and index snapshots name a version and its fingerprint.
  assert plain.fingerprint == corpus.fingerprint
  assert opened.newest() is opened
  require_consistent(opened)
  add_views(plain.source, ["learned:train:90"])
  require_views(Corpus.open(plain.source), "t5", "own", "learned")


def test_an_update_keeps_the_views(corpus, update):
  add_views(corpus.source, [T5])
  before = Corpus.open(corpus.source)
  assert before.version == 1
  update([article("d3", seed=103), {"id": "d1", "remove": True}])
  after = Corpus.open(corpus.source)
  assert after.version == 2
  for version in (before, after):
    require_views(version, "t5")
  add_views(corpus.source, ["small:train:60"])
  require_views(Corpus.open(corpus.source), "t5", "small")
  require_views(Corpus.open(corpus.source, version=1), "t5")


def test_a_long_title_is_cut_and_the_corpus_itself_is_a_view(build):
  """The latter for a reader of the corpus's own wordpieces, as EMDR²'s is."""
  rows = [{"title": "Velt of the river " * 500, "text": "Ada was in. " * 9}]
  corpus = build(rows, view=[T5], block_length=16)
  tokens = corpus.view("t5").gather(np.arange(2), 400)
  assert tokens.title_lengths.tolist() == [128, 128]
  view, block = corpus.view(None), corpus.block(1)
  tokens = view.gather(np.array([1]), 64)
  assert tokens.token_ids[0, : tokens.lengths[0]].tolist() == [*block.token_ids]
  assert tokens.title_lengths.tolist() == [block.title_length]
  assert view.digest == corpus.vocabulary.digest


@pytest.mark.slow
def test_a_kill_leaves_the_corpus_with_the_view_or_without(
  built, tmp_path, command_server
):
  """After an array, the model, and the manifest."""
  moments = {"t5.token_ids.npy": [], "t5.model": [], "corpus.json": ["t5"]}
  for at, views in moments.items():
    copy = shutil.copytree(built, tmp_path / at)
    program = change_and_die(f"add_views({str(copy)!r}, [{T5!r}])", at)
    done = command_server.run([sys.executable, "-c", program])
    assert done.returncode == -signal.SIGKILL, done.stderr
    require_views(Corpus.open(copy), *views)
    # The next change removes what the killed one left.
    empty = write_lines(tmp_path / "empty.jsonl", [])
    update_corpus([str(empty)], copy)
    require_all_named(copy)
    if not views:
      add_views(copy, [T5])
    require_views(Corpus.open(copy), "t5")


def test_what_makes_no_view_is_said(corpus, vocab_file):
  source = corpus.source
  add_views(source, [T5])
  for view, message in (
    ("t5", "want NAME:spiece.model or NAME:train:SIZE"),
    (f"../x:{MODEL}", "want NAME:spiece.model"),
    ("own:train:big", "want NAME:spiece.model or NAME:train:SIZE"),
    (T5, "take another name; t5 is there"),
    (f"own:{vocab_file}", "vocab.txt: .* no SentencePiece model"),
    ("own:train:5", "no SentencePiece model of 5 pieces"),
  ):
    with pytest.raises(RealmError, match=message):
      add_views(source, [view])
  with pytest.raises(CorpusError, match="workers=0; give 1 or more"):
    add_views(source, ["own:train:90"], workers=0)
  viewed = Corpus.open(source)
  with pytest.raises(CorpusError, match=r"no view 'mt5' \(it has t5\); add it"):
    viewed.view("mt5")
  with pytest.raises(CorpusError, match=r"no view 't5' \(it has none\)"):
    corpus.view("t5")
  assert viewed.view("t5").digest == read_sentencepieces(MODEL).digest


def test_damage_of_a_view_is_found(corpus):
  add_views(corpus.source, [T5])
  model = corpus.source / "views" / "t5.model"
  other = bytearray(model.read_bytes())
  # A score, which is a float after its piece.
  other[other.index(b"\x15") + 1] ^= 1
  model.write_bytes(other)
  with pytest.raises(CorpusError, match=r"t5\.model is not the model"):
    _ = Corpus.open(corpus.source).view("t5").vocabulary
  (corpus.source / "shard-00000" / "t5.token_ids.npy").unlink()
  with pytest.raises(CorpusError, match=r"t5.token_ids.npy is missing"):
    Corpus.open(corpus.source)


@pytest.mark.slow
def test_the_command_adds_a_view(corpus, command_server):
  def run(*arguments):
    command = [sys.executable, "-m", "realm_jax.build_corpus", "--update"]
    command += [f"--output_dir={corpus.source}", *arguments]
    return command_server.run(command)

  done = run(f"--view={T5}", "--view=own:train:90")
  assert done.returncode == 0, done.stderr
  require_views(Corpus.open(corpus.source), "t5", "own")
  for arguments, message in (
    ((f"--view=b:{MODEL}", "--input=x"), "give it without --input"),
    ((f"--view=b:{MODEL}", "--language=de"), "give it without --update"),
    ((), "--input is missing"),
  ):
    refused = run(*arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
