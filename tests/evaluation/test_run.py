"""The checkpoint and the snapshot of a run, its edits, and its refusals."""

import dataclasses
import shutil

import numpy as np
import pytest

from realm_jax.checkpoints.store import (
  BestCheckpoint,
  CheckpointError,
  write_best,
)
from realm_jax.corpus import CorpusError
from realm_jax.evaluation.encoding import EditError
from realm_jax.evaluation.run import TrainedRun
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.hybrid import HybridConfig
from realm_jax.indexes.protocol import SearchError
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.training.stages.open_qa import OpenQa
from tests import tiny_world

pytestmark = pytest.mark.slow

_QUESTIONS = [question["question"] for question in tiny_world.questions()]
# Texts of other lengths, and two of blocks that many queries find.
_TEXTS = {
  0: "Ada was born in Tarn.",
  # The second block of an article, and characters that take two bytes.
  3: "Later Chloë built the bridge of Ösker in 1901.",
  4: "Later Dóra built the bridge of Velt in 1909. Dóra was born in Ösker.",
  11: "Jörg was born in Pola in 1909. Later Jörg built the stone of Mirá.",
  27: "  Zoë was born. Zoë was born in 1901. Zoë built. ",
}


@pytest.fixture(scope="module")
def load(run_config):
  """`load(**changes)` loads the run for open QA."""
  return lambda **changes: TrainedRun.load(
    dataclasses.replace(run_config, **changes)
  )


@pytest.fixture(scope="module")
def two_steps(world, tmp_path_factory, load) -> TrainedRun:
  """Checkpoint 20, trained with snapshot 10; both snapshots stand."""
  model_dir = tmp_path_factory.mktemp("two_steps")
  world.save_checkpoint(model_dir, step=10, seed=1, snapshot=10)
  world.build_snapshot(model_dir)
  world.save_checkpoint(model_dir, step=20, seed=2, snapshot=10)
  world.build_snapshot(model_dir)
  return load(model_dir=model_dir)


def test_which_checkpoint_and_snapshot_it_takes(two_steps, load):
  assert (two_steps.step, two_steps.snapshot.step) == (20, 10)
  model_dir = two_steps.model_dir
  assert load(model_dir=model_dir, checkpoint_step=10).step == 10
  by_path = load(model_dir=model_dir / "checkpoints" / "10")
  assert (by_path.step, by_path.model_dir) == (10, model_dir)
  with pytest.raises(CheckpointError, match=r"no .* step 15.*10, 20"):
    load(model_dir=model_dir, checkpoint_step=15)
  # A retriever alone prefers the snapshot that it has built itself.
  assert load(model_dir=model_dir, reader=None).snapshot.step == 20
  newest = load(model_dir=model_dir, snapshot=model_dir / "snapshots")
  assert newest.snapshot.step == 20
  write_best(model_dir, BestCheckpoint("exact_match", 10, 0.5))
  assert load(model_dir=model_dir, checkpoint_step="best").step == 10
  assert load(model_dir=model_dir).step == 20


def test_snapshots_and_corpora_that_do_not_fit(
  world, two_steps, load, tmp_path
):
  model_dir = two_steps.model_dir
  for name in ("checkpoints/20", "snapshots/00000020"):
    shutil.copytree(model_dir / name, tmp_path / name)
  # The one that was used is gone.
  with pytest.raises(SnapshotError, match=r"wants snapshot 10.*\[20\]"):
    _ = load(model_dir=tmp_path).snapshot
  with pytest.raises(SnapshotError, match="does not exist; want a snapshot"):
    _ = load(snapshot=tmp_path / "none").snapshot
  for length in (39, 41):
    with pytest.raises(CorpusError, match=r"BLOCK_LENGTH=40"):
      load(block_length=length)
  with pytest.raises(SearchError, match=r"without vectors.*'exact'"):
    world.save_checkpoint(
      tmp_path / "bm25", snapshot=0, stage=OpenQa(index_scores=True)
    )
    snapshot = model_dir / "snapshots"
    _ = load(
      model_dir=tmp_path / "bm25", index_scores=True, snapshot=snapshot
    ).snapshot


# --- Edits ------------------------------------------------------------------


def test_edits_read_and_find_what_a_new_corpus_and_index_would(
  run, world, load, model_dir, tmp_path
):
  # The same checkpoint over a corpus that is built from the edited texts.
  bodies: dict[str, list[str]] = {}
  for row in range(world.corpus.num_blocks):
    text = _TEXTS.get(row, world.corpus.block(row).text)
    bodies.setdefault(world.corpus.block(row).document_id, []).append(text)
  corpus_dir = tiny_world.write_corpus(
    tmp_path,
    [
      {**article, "text": " ".join(bodies[article["id"]])}
      for article in tiny_world.documents()
    ],
    vocab=world.directory / "vocab.txt",
  )
  snapshots = tmp_path / "snapshots"
  world.build_snapshot(
    model_dir, corpus_dir=corpus_dir, snapshots_dir=snapshots
  )
  built = load(corpus_dir=corpus_dir, snapshot=snapshots)
  edited = run.edited(_TEXTS)
  num_blocks = run.corpus.num_blocks
  rows = np.arange(num_blocks).reshape(2, -1)
  np.testing.assert_array_equal(edited.gather(rows), built.gather(rows))
  for row in range(num_blocks):
    one, other = edited.block(row), built.block(row)
    assert one.text == other.text
    np.testing.assert_array_equal(one.body_token_ids, other.body_token_ids)
    np.testing.assert_array_equal(one.byte_ranges, other.byte_ranges)
  token_ids = run.encode(_QUESTIONS)
  for k in (3, num_blocks):
    found, wanted = (one.search(token_ids, k) for one in (edited, built))
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4)
    # Blocks whose scores differ by rounding may change places.
    for i, rows in enumerate(found.rows.tolist()):
      own = dict(zip(rows, found.scores[i].tolist(), strict=True))
      for row, score in zip(wanted.rows[i], wanted.scores[i], strict=True):
        assert own.get(int(row), wanted.scores[i, -1]) == pytest.approx(
          float(score), abs=1e-4
        )
  # The run itself stays as it is.
  assert run.block(0).text == run.corpus.block(0).text
  hidden = edited.edited({}, hidden=[0, 11]).search(token_ids, num_blocks)
  assert not np.isin(hidden.rows, [0, 11]).any()


def test_a_text_that_stays_as_it_was_keeps_its_vector(two_steps):
  # Its one tower was trained after the snapshot was built.
  edited = two_steps.edited({0: two_steps.block(0).text})
  stored = two_steps.snapshot.vectors(np.array([0]))
  np.testing.assert_allclose([edited.edited_vectors[0]], stored, atol=1e-5)


@pytest.mark.parametrize(
  ("index", "scored_rows"),
  [(None, 99), (None, 0), (Bm25Config(), 0), (HybridConfig(num_fused=99), 0)],
)
def test_a_filtered_run_finds_the_best_of_what_is_let_through(
  run_config, index, scored_rows, monkeypatch
):
  monkeypatch.setattr("realm_jax.evaluation.search._SCORED_ROWS", scored_rows)
  # One query at a time.
  monkeypatch.setattr("realm_jax.evaluation.search._FILTERED_CELLS", 1)
  run = TrainedRun.load(run_config, index=index)
  token_ids = run.encode(["where was Ada born?", "who built Velt?"])
  some = run.filtered({"year": ["1902", "1905"]})
  rows = np.flatnonzero(some.allowed)
  assert 1 < len(rows) < 6
  ranked = run.search(token_ids, run.corpus.num_blocks)
  for k in (1, 2, 99):
    found = some.search(token_ids, k)
    for own, scores, of_all, all_scores in zip(
      found.rows, found.scores, ranked.rows, ranked.scores, strict=True
    ):
      fits = np.isin(of_all, rows)
      np.testing.assert_array_equal(own, of_all[fits][:k])
      np.testing.assert_allclose(scores, all_scores[fits][:k], rtol=1e-5)
  if some.can_edit:
    # Another text does not change what a document is.
    edited = some.edited({0: "Oda was born.", int(rows[0]): "Ada was born."})
    assert {*edited.search(token_ids, 99).rows[0]} == {*rows}


def test_only_blocks_of_an_index_of_vectors_can_be_edited(
  world, load, model_dir, tmp_path
):
  index = Bm25Config()
  world.build_snapshot(model_dir, index=index, snapshots_dir=tmp_path)
  run = load(snapshot=tmp_path)
  with pytest.raises(EditError, match="counts words over the whole corpus"):
    run.edited({0: "Ada."})
  token_ids = run.encode(["where was Ada born?"])
  hidden = run.edited({}, hidden=[0, 11])
  (found,) = hidden.search(token_ids, 99).rows
  assert {*found} == {*range(run.corpus.num_blocks)} - {0, 11}


def test_a_text_that_does_not_fit_is_refused(run):
  # 40, less three special tokens and the two of the title.
  run.edited({0: "Velt " * 35})
  with pytest.raises(
    EditError, match=r"36 wordpieces, and .* p0:0 has room for 35"
  ):
    run.edited({0: "Velt " * 36})
  with pytest.raises(EditError, match="no words"):
    run.edited({0: " \n "})
