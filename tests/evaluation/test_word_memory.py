"""A memory of masked words: its keys, what it refuses, and its evaluation."""

import contextlib
import dataclasses
import shutil
from collections import Counter

import jax
import numpy as np
import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation import run as runs
from realm_jax.evaluation import word_memory
from realm_jax.evaluation.masked_lm import evaluate_masked_lm
from realm_jax.evaluation.word_memory import WordMemory, build_memory
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import TaskContext
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.stages.pretraining import Pretraining
from tests import tiny_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def build(run_config, tmp_path_factory):
  """`build(corpus_dir, …)` builds a memory, and returns its directory."""

  def call(corpus_dir=run_config.corpus_dir, *, held_out=0, **settings):
    output_dir = tmp_path_factory.mktemp("built") / "memory"
    data = TaskContext(corpus_dir, held_out_blocks=held_out)
    given = {"config": run_config, "data": data, "output_dir": output_dir}
    build_memory(**{**given, **settings})
    return output_dir

  return call


@pytest.fixture(scope="module")
def memory_dir(build):
  return build()


@pytest.fixture(scope="module")
def sentences(questions):
  return dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=1_000_003
  )


def _masked(corpus):
  """The masked words of each block, by its hash; none if none fits."""
  masked = {}
  for row in range(corpus.num_blocks):
    block, number = corpus.block(row), 0
    for start, limit in block.salient_spans:
      first = max(one for one, _ in block.sentences if one <= start)
      # A query that would end within the span is left out.
      fits = limit - first + 2 <= tiny_world.QUERY_LENGTH
      number += fits * (limit - start)
    if number:
      masked[int(corpus.content_hashes[row])] = int(number)
  return masked


def test_a_key_for_each_masked_word_on_any_number_of_devices(
  build, memory_dir, run, world, monkeypatch
):
  records = WordMemory(memory_dir, run).records
  assert Counter(records["source"].tolist()) == _masked(world.corpus)
  assert len(records) > 100
  keys = records["key"].astype(np.float32)
  assert np.linalg.norm(keys, axis=1) == pytest.approx(1, abs=1e-3)

  monkeypatch.setattr(runs, "make_mesh", make_mesh)
  assert jax.device_count() == 8
  on_eight = WordMemory(build(), run).records
  for name in ("word", "source"):
    assert (on_eight[name] == records[name]).all()
  np.testing.assert_allclose(on_eight["key"], records["key"], atol=2e-3)


@pytest.fixture(scope="module")
def batch(sentences):
  with contextlib.closing(stream_batches(sentences)) as batches:
    return next(batches)


def _nearest(memory, batch, own):
  query, positions = batch.array("query"), batch.array("mask_positions")
  return memory.nearest(query, positions, own)


def test_what_the_task_masks_is_in_the_memory(memory_dir, run, batch):
  # No block is the queries' own, so that each finds itself.
  none = np.zeros_like(batch.array("source_hash"))
  scores, words = _nearest(WordMemory(memory_dir, run), batch, none)
  is_mask = batch.array("mask_weights") > 0
  assert scores[is_mask].max(axis=-1) == pytest.approx(1, abs=2e-3)
  same = words[..., 0] == batch.array("mask_targets")
  assert same[is_mask].mean() > 0.9


@pytest.mark.parametrize("index", ["exact", "faiss"])
def test_a_querys_own_block_is_left_out(
  build, memory_dir, run, batch, index, monkeypatch
):
  monkeypatch.setattr(word_memory, "_NUM_NEIGHBORS", 5)
  # Nothing is read again.
  memory = WordMemory(build(index=index, extend=memory_dir), run)
  own = batch.array("source_hash")
  scores, words = _nearest(memory, batch, own)
  states = word_memory.null_states(
    run, batch.array("query"), batch.array("mask_positions")
  )
  for row, source in enumerate(own):
    others = memory.records[memory.records["source"] != source]
    wanted = others["key"].astype(np.float32) @ states[row, 0]
    best = np.sort(scores[row, 0])[::-1][:5]
    assert best == pytest.approx(np.sort(wanted)[::-1][:5], abs=1e-5)
    is_other = np.isfinite(scores[row, 0])
    assert {*words[row, 0, is_other].tolist()} <= {*others["word"].tolist()}


def test_only_new_blocks_are_read_when_a_memory_is_extended(
  build, memory_dir, run, world, tmp_path, monkeypatch
):
  people = tiny_world.documents()
  articles = [*people[1:], {**people[0], "text": people[5]["text"]}]
  vocab = world.directory / "vocab.txt"
  corpus_dir = tiny_world.write_corpus(tmp_path, articles, vocab=vocab)
  before, after = world.corpus, Corpus.open(corpus_dir)
  read, spans = [], word_memory.masked_spans

  def counted(data, row, config):
    read.append(after.content_hashes[row])
    return spans(data, row, config)

  monkeypatch.setattr(word_memory, "masked_spans", counted)
  records = WordMemory(build(corpus_dir, extend=memory_dir), run).records
  new = {*after.content_hashes.tolist()} - {*before.content_hashes.tolist()}
  assert {*read} & {*_masked(after)} == new
  assert {*records["source"].tolist()} == {*_masked(after)}
  whole = WordMemory(build(corpus_dir), run).records
  order = [np.lexsort([one["word"], one["source"]]) for one in (records, whole)]
  for name in ("word", "source"):
    assert (records[order[0]][name] == whole[order[1]][name]).all()


def test_blocks_that_are_held_out_have_no_keys(build, run, world):
  records = WordMemory(build(held_out=3), run).records
  held_out = world.corpus.content_hashes[-3:].tolist()
  assert {*records["source"].tolist()} == {*_masked(world.corpus)} - {*held_out}


def test_a_memory_of_another_run_or_a_damaged_one_is_refused(
  build, memory_dir, run, world, tmp_path
):
  with pytest.raises(ValueError, match="files in it"):
    build_memory(
      config=run.config,
      data=TaskContext(world.corpus_dir),
      output_dir=memory_dir,
    )
  world.save_checkpoint(tmp_path / "other", seed=1)
  config = dataclasses.replace(run.config, model_dir=tmp_path / "other")
  with pytest.raises(ValueError, match="of another checkpoint; build"):
    WordMemory(memory_dir, runs.TrainedRun.load(config))
  with pytest.raises(ValueError, match="has no memory"):
    WordMemory(tmp_path, run)
  damaged = shutil.copytree(memory_dir, tmp_path / "damaged")
  with (damaged / "keys.bin").open("r+b") as file:
    file.write(b"\0\0\0\1")
  with pytest.raises(ValueError, match="checksum"):
    WordMemory(damaged, run)


@pytest.mark.parametrize("num_candidates", [1, 4])
def test_a_memory_is_evaluated_beside_the_reader(
  memory_dir, run_config, sentences, num_candidates
):
  def evaluate(**settings):
    return evaluate_masked_lm(
      config=run_config,
      data=sentences,
      stage=Pretraining(num_candidates=num_candidates),
      num_batches=3,
      **settings,
    )

  without, found = evaluate(), evaluate(memory=memory_dir)
  assert {n: found[n] for n in without} | {"seconds": 0} == pytest.approx(
    without | {"seconds": 0}
  )
  assert 0 < found["num_masks_memory"] < found["num_masks"]
  for suffix in ("", "_null"):
    perplexity = found[f"perplexity{suffix}_without_memory"]
    # Random weights predict nothing, and words recur in the world.
    assert found[f"memory_share{suffix}"] > 0
    assert found[f"perplexity{suffix}_with_memory"] < perplexity
  if num_candidates == 1:
    assert found["perplexity_with_memory"] == pytest.approx(
      found["perplexity_null_with_memory"]
    )
