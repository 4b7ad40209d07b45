"""What the benchmarks make of their measurements."""

import functools

import numpy as np
import pytest

from benchmarks import (
  answers,
  embedding,
  index,
  own_step,
  peer_processes,
  real_text_minilm,
  retrieval_overhead,
  swap,
  trained_vectors,
)
from benchmarks.data import demo_corpus, generated_blocks, large_corpus
from benchmarks.data.index_vectors import SyntheticVectors
from benchmarks.data.random_towers import random_towers
from benchmarks.faults import injection, on_disk
from realm_jax.answers.distinct import DistinctAnswers, QuestionAnswers
from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.recall import held_out_queries
from realm_jax.generations.follow.loading import load_newest
from realm_jax.indexes.exact import ExactConfig
from realm_jax.training.config import TrainConfig
from tests import tiny_world
from tests.integration.commands import MODEL_FILE


def _rows(seconds, *, generations=None, searched=None):
  count = len(seconds)
  generations = generations or [0] * count
  searched = searched or [True] * count
  return [
    {
      "step": step + 1,
      "step_seconds": seconds[step],
      "generation": generations[step],
      **({"search_ms": 1.0, "gather_ms": 2.0} if searched[step] else {}),
    }
    for step in range(count)
  ]


def test_overhead_compares_neighbouring_turns():
  # Turns of ten steps, of which four are mixed. The machine slows down
  # halfway: both kinds double, and the ratio stays.
  seconds, searched = [], []
  for turn, slow in enumerate([1, 1, 1, 1, 2, 2]):
    is_searched = turn % 2 == 0
    seconds += [9.0] * 4 + [slow * (0.105 if is_searched else 0.1)] * 6
    searched += [is_searched] * 10
  found = retrieval_overhead.overhead(_rows(seconds, searched=searched))
  # The first turn of each kind is left out.
  assert found["pairs_of_turns"] == 2
  assert found["ratio"] == pytest.approx(1.05)
  assert found["given_ms"] == pytest.approx(150)
  assert (found["search_ms"], found["gather_ms"]) == (1.0, 2.0)


def test_swaps_are_held_against_the_median_step():
  seconds = [0.1] * 20
  generations = [0] * 8 + [5] * 6 + [10] * 6
  seconds[7] = 0.14  # The step that swaps, before the first search in it.
  seconds[14] = 0.12
  seconds[3] = 5.0  # No swap.
  found = retrieval_overhead.swaps(_rows(seconds, generations=generations))
  assert [swap["step"] for swap in found["swaps"]] == [9, 15]
  assert [swap["ms"] for swap in found["swaps"]] == pytest.approx([140, 120])
  assert found["swap_ratio"] == pytest.approx(1.4)


def test_blocks_are_as_long_as_the_demos(project_dir):
  recipe = project_dir / "gin" / "experiments" / "demo" / "model.gin"
  lines = recipe.read_text().splitlines()
  assert f"BLOCK_LENGTH = {demo_corpus.BLOCK_LENGTH}" in lines


def test_faults_are_random_and_repeat():
  kinds = list(on_disk.KINDS)
  settings = {
    "kinds": kinds,
    "num_steps": 100,
    "save_every_steps": 5,
    "cycle_seconds": 3.0,
  }
  drawn = injection.draw_faults(24, seed=0, **settings)
  assert drawn == injection.draw_faults(24, seed=0, **settings)
  assert drawn != injection.draw_faults(24, seed=1, **settings)
  assert sorted(fault.kind for fault in drawn) == sorted(2 * kinds)
  steps = [fault.checkpoint for fault in drawn]
  assert steps == sorted(steps)
  # The last of them still meet a run.
  assert max(steps) < 60


@pytest.mark.slow
def test_the_step_is_timed_with_and_without_packing():
  sizes = "--layers=1 --hidden=16 --heads=2 --inner=32 --vocab=1200 --batch=2"
  texts = "--candidates=2 --query=8 --block=12 --joint=20 --masks=2 --steps=1"
  found = {}
  for flag in ("--pack", "--no-pack"):
    given = own_step.make_parser().parse_args(
      [*f"{sizes} {texts}".split(), flag]
    )
    found[flag] = own_step.measure(given)
  packed, padded = found["--pack"], found["--no-pack"]
  assert packed["loss"] == pytest.approx(padded["loss"], rel=1e-4)
  name = "useful_gflop_per_step"
  assert packed[name] == padded[name] > 0


def test_a_table_of_what_each_stage_gave():
  rows = [
    {"after": "BM25", "minutes": 0.2, "recall_at_1": 0.5, "mrr": 0.25},
    {"after": "open QA", "minutes": 12.0, "exact_match": 0.125},
  ]
  lines = real_text_minilm.markdown(rows).splitlines()
  assert lines[2] == "| BM25 | 0.2 | 0.500 |  |  | 0.250 |  |  |"
  assert lines[3] == "| open QA | 12.0 |  |  |  |  | 0.125 |  |"


@pytest.mark.slow
def test_an_index_is_built_and_searched_in_processes_of_its_own(tmp_path):
  rows = index.rows(index.Job("scann", str(tmp_path), 2_000, repeats=1))
  (row,) = rows
  assert row["recall_at_8"] == 1
  wanted = ("queries_per_second", "build_seconds", "load_seconds")
  assert all(row[name] > 0 for name in (*wanted, "peak_memory_gb"))
  assert [path.suffix for path in sorted(tmp_path.iterdir())] == [
    ".npz",
    ".npy",
  ]


def test_indexes_are_compared_at_the_recall_that_is_wanted():
  def row(name, recall, speed):
    figures = {"build_seconds": 1.0, "load_seconds": 1.0, "peak_memory_gb": 1.0}
    return {
      "index": name,
      "recall_at_8": recall,
      "queries_per_second": speed,
      **figures,
    }

  result = {
    "num_blocks": 10,
    "dim": 2,
    "recall_target": 0.9,
    "rows": [
      row("scann", 0.95, 300.0),
      row("faiss_ivf_pq", 0.8, 900.0),
      row("faiss_ivf_pq", 0.91, 150.0),
      row("faiss_ivf_pq", 0.99, 100.0),
    ],
  }
  (ratio,) = index.ratios(result).values()
  assert ratio == 2
  assert index.table(result).count("faiss_ivf_pq ") == 1


def test_vectors_of_a_model_are_drawn_from_with_a_little_noise(tmp_path):
  base = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
  np.save(tmp_path / "base.npy", base)
  drawn = SyntheticVectors(tmp_path, 300, base=tmp_path / "base.npy")
  vectors = drawn.vectors()
  assert vectors.shape == (300, 6) and drawn.queries().shape == (512, 6)
  away = np.linalg.norm(vectors[:, None] - base, axis=2).min(axis=1)
  assert 0.1 < away.mean() < 0.4


def test_files_of_other_vectors_are_not_read_again(tmp_path):
  rng = np.random.default_rng(0)
  base, queries = tmp_path / "base.npy", tmp_path / "queries.npy"

  def drawn(*changed):
    for path in changed:
      np.save(path, rng.standard_normal((50, 6)).astype(np.float32))
    data = SyntheticVectors(tmp_path, 300, base=base, base_queries=queries)
    return np.array(data.vectors()), data.truth().rows

  vectors, rows = drawn(base, queries)
  same_vectors, other_rows = drawn(queries)
  np.testing.assert_array_equal(vectors, same_vectors)
  assert (rows != other_rows).any()
  other_vectors, _ = drawn(base)
  assert (vectors != other_vectors).any()
  # Those that follow from nothing but sizes and seed keep their names.
  plain = SyntheticVectors(tmp_path, 1000)
  assert plain.path.name == "vectors-1000x128-seed0.npy"


@pytest.mark.slow
def test_the_vectors_of_a_trained_model_are_written(world, tmp_path):
  params = world.save_checkpoint(tmp_path / "run")
  world.build_generation(tmp_path / "run")
  trained_vectors.main(
    [
      f"--model_dir={tmp_path}/run",
      f"--corpus_dir={world.corpus_dir}",
      "--gin_file=gin/runs/build_index.gin",
      f"--gin_file={MODEL_FILE}",
      f"--output_dir={tmp_path}/vectors",
      "--queries=300",
    ]
  )
  generation = load_newest(tmp_path / "run/generations", corpus=world.corpus)
  rows = np.arange(generation.num_blocks)
  base = np.load(tmp_path / "vectors" / "base.npy")
  np.testing.assert_array_equal(base, generation.vectors(rows))
  queries = np.load(tmp_path / "vectors" / "base_queries.npy")
  assert queries.shape == (300, base.shape[1])
  tokens = held_out_queries(
    world.corpus, count=300, query_length=tiny_world.QUERY_LENGTH
  )
  expected = world.models().retriever.apply(
    {"params": params["retriever"]}, tokens, method="embed_queries"
  )
  np.testing.assert_allclose(queries, expected, atol=1e-5)


def test_a_corpus_that_was_not_finished_is_made(tmp_path):
  # As a kill leaves it.
  (tmp_path / "corpus-of-0.05" / "world").mkdir(parents=True)
  corpus = large_corpus.make_corpus(tmp_path, 100, scale=0.05)
  assert corpus.num_blocks == 100


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_swap_is_measured(tmp_path, monkeypatch):
  # Each shape of packed batches takes seconds to compile.
  one_shape = functools.partial(TrainConfig, max_shape_buckets=1)
  monkeypatch.setattr(swap, "TrainConfig", one_shape)
  found = swap.measure(
    tmp_path,
    num_blocks=300,
    index=ExactConfig(),
    scale=0.05,
    swaps=1,
    steps_between=8,
    batch_size=2,
  )
  assert "longest against the median" in swap.table(found)
  assert (found["swaps"], found["num_blocks"]) == (1, 300)
  (load,) = found["loads"]
  assert load["searched_from_step"] > load["published_at_step"] >= 8
  assert load["ratio"] > 0
  assert not (tmp_path / "model").exists()


def test_a_load_lasts_from_publication_until_after_the_swap():
  # Published at step 41, searched from step 46 on; the old index goes later.
  rows = _rows([0.1] * 100, generations=[0] * 45 + [1] * 55)
  for step, seconds in ((20, 0.3), (43, 0.14), (48, 0.15), (60, 0.9)):
    rows[step - 1]["step_seconds"] = seconds
  (load,) = swap.loads(rows, [41, 90])
  assert (load["published_at_step"], load["searched_from_step"]) == (41, 46)
  assert load["seconds"] == pytest.approx(0.1 * 4 + 0.14)
  assert load["median_before_ms"] == pytest.approx(100)
  assert load["ratio_before"] == pytest.approx(3.0)
  assert load["ratio"] == pytest.approx(1.5)


@pytest.mark.slow
def test_embedding_is_timed_in_buckets_and_padded(world, tmp_path, monkeypatch):
  monkeypatch.setattr(peer_processes, "PEERS_DIR", tmp_path)
  corpus = Corpus.open(world.corpus_dir)
  towers = random_towers(tiny_world.RETRIEVER, corpus)
  rows = embedding.sample_of(corpus, 20)
  ours, padded = embedding.measure(
    embedding.Model("minilm", *towers, None), corpus, rows, tmp_path, rounds=1
  )
  assert ours["tokens"] == padded["tokens"] == corpus.lengths[rows].sum()
  assert 1 <= ours["computed_over_useful"] < padded["computed_over_useful"]
  assert padded["ours_is_faster"] == pytest.approx(
    padded["seconds"][0] / ours["seconds"][0]
  )
  assert "(≥ 1.5)" in embedding.table([ours, padded])


def test_a_sample_keeps_the_order_of_the_corpus(world):
  corpus = Corpus.open(world.corpus_dir)
  rows = embedding.sample_of(corpus, 9)
  assert len(rows) == 9
  assert (np.diff(rows) > 0).all()
  assert len(embedding.sample_of(corpus, 10**6)) == corpus.num_blocks


def test_a_step_with_stored_answers_is_that_of_a_search_in_its_blocks(
  tmp_path,
):
  documents = tiny_world.documents()
  corpus = generated_blocks.make_corpus(
    tmp_path,
    40,
    texts=[(document["title"], document["text"]) for document in documents],
    vocabulary_size=300,
  )
  assert corpus.num_blocks == 40
  texts = [f"answer {i}" for i in range(10)]
  texts += [document["text"].split()[0] for document in documents]
  encode = corpus.vocabulary.encode
  questions = [QuestionAnswers("string", [t], [encode(t)]) for t in texts]
  distinct = DistinctAnswers.of(questions)
  row, store = answers.search(tmp_path / "store", corpus, distinct)
  assert row["answers_found"] == len(documents)
  # It raises an error where they differ.
  found = answers.steps(corpus, AnswersInBlocks(corpus, distinct, store), texts)
  assert found["blocks_read_per_step"] <= 40
