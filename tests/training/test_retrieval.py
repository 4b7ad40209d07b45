"""Host, step and evaluation choose the same candidates, which are the best."""

import contextlib
import dataclasses
import functools
import threading

import jax
import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW
from realm_jax.corpus.update import add_views
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.run import TrainedRun
from realm_jax.evaluation.search import search_as_trained
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.indexes.faiss import FaissConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import Components
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.t5 import T5Config
from realm_jax.partitioning import sharding
from realm_jax.training.batch_pipeline import BatchPipeline
from realm_jax.training.block_arrays import SearchedBlocks, load_blocks
from realm_jax.training.checkpointing import LoopState, StepRecord
from realm_jax.training.compiled_steps import set_up
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import open_schedule
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.search_in_step import SearchInStep
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.stage import StageContext
from realm_jax.training.stages.text_to_text import TextToText
from realm_jax.training.state import TrainState
from tests import tiny_world

pytestmark = pytest.mark.slow
TASKS = {
  Pretraining: "masked_salient_spans",
  InverseCloze: "inverse_cloze",
  OpenQa: "open_qa",
  TextToText: "masked_salient_spans",
}
STAGES = {
  "as_in_the_paper": Pretraining(num_candidates=4),
  "no_null_block": Pretraining(num_candidates=4, null_block=False),
  "source_stays": Pretraining(num_candidates=4, drop_source=False),
  # The null block takes the place of copies.
  "nothing_spare": Pretraining(num_candidates=24, num_spare=0),
  "current_queries": Pretraining(num_candidates=4, current_queries=True),
  "words_first": Pretraining(num_candidates=4, read_gold=True),
  "hard_negatives": InverseCloze(num_hard_negatives=3),
  "open_qa": OpenQa(num_searched_blocks=10, num_read=3),
  "texts": TextToText(num_read=4, drop_source=True),
  "snapshot_queries": OpenQa(num_searched_blocks=2, current_queries=False),
}
INDEXES = {
  "exact": ExactConfig(dtype="float32"),
  # What it stores is rounded, and open QA trains on the vectors of the files.
  "rounded": ExactConfig(dtype="bfloat16"),
  "faiss": FaissConfig(),
  "scann": ScannConfig(),
  "bm25": Bm25Config(),
}
WRITER = GenerativeReader(
  T5Config(hidden_size=8, num_layers=1, num_heads=2, head_size=4),
  prompt="{query}",
  input_length=60,
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> tiny_world.World:
  """The first version of the texts, from which sentences are taken."""
  return tiny_world.build(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def run_over(examples, tmp_path_factory):
  """`run_over(index)`: the same run, by the name of what it searches.

  Its corpus is edited, in another order, and has copies.
  """
  folder = tmp_path_factory.mktemp("edited")
  articles = tiny_world.documents()[::-1]
  articles[3]["text"] += " That was long ago."
  copies = [one | {"id": f"{one['id']}-copy"} for one in articles[5:20]]
  vocab = examples.directory / "vocab.txt"
  tiny_world.write_corpus(folder, [*articles, *copies], vocab=vocab)
  world = tiny_world.World(folder)
  add_views(world.corpus_dir, ["t5:train:300"])
  # The parameters are no longer those of the snapshot.
  before, now = folder / "before", folder / "now"
  world.save_checkpoint(before, stage=Pretraining())
  world.save_checkpoint(now, step=1, seed=1, snapshot=0, stage=Pretraining())

  @functools.cache
  def load(name: str) -> TrainedRun:
    snapshots = folder / name
    world.build_snapshot(before, index=INDEXES[name], snapshots_dir=snapshots)
    return TrainedRun.load(
      RunConfig(
        model_dir=now,
        snapshot=snapshots,
        corpus_dir=world.corpus_dir,
        retriever=tiny_world.RETRIEVER,
        reader=tiny_world.READER,
        query_length=tiny_world.QUERY_LENGTH,
        block_length=tiny_world.BLOCK_LENGTH,
      )
    )

  return load


# Approximate indexes are searched by the same code for every setting.
PAIRS = [
  (index, stage)
  for index in INDEXES
  for stage in STAGES
  if index == "exact"
  or (stage == "open_qa" and index != "bm25")
  or (stage == "as_in_the_paper" and index != "rounded")
]


@pytest.mark.parametrize(("over", "name"), PAIRS)
def test_all_choose_the_same_candidates(
  run_over, examples, tmp_path, over, name
):
  run, stage = run_over(over), STAGES[name]
  retrieval = stage.retrieval
  (tmp_path / "snapshots").symlink_to(run.config.snapshot)
  config = _config(run, examples, stage, tmp_path)
  with contextlib.closing(stream_batches(config.data)) as stream:
    batch = next(stream)
  by_host = _by_host(run, config, batch)
  query = batch.array("query")
  evaluated = search_as_trained(run, stage, batch)
  if isinstance(stage, OpenQa):
    np.testing.assert_array_equal(
      by_host.blocks, run.gather(evaluated.rows[:, : stage.num_read])
    )
    np.testing.assert_array_equal(
      by_host.retrieved, run.snapshot.vectors(evaluated.rows)
    )
    if over == "rounded":
      # A search puts what it finds in the order of unrounded scores.
      return
    searched = run.search(
      query, evaluated.rows.shape[1], current=retrieval.current_queries
    )
    np.testing.assert_array_equal(searched.rows, evaluated.rows)
    return
  context = _context(run, stage)
  by_evaluation, _ = stage.features(batch, evaluated, context)
  jax.tree.map(np.testing.assert_array_equal, by_host, by_evaluation)
  if not isinstance(run.snapshot.index, ExactIndex) or name == "words_first":
    return
  vectors = run.embed_tokens(query, current=retrieval.current_queries)
  expected = run.gather(_by_hand(run, batch, vectors, retrieval))
  if isinstance(stage, InverseCloze):
    np.testing.assert_array_equal(by_host.blocks[:, 1:], expected)
    return
  np.testing.assert_array_equal(by_host.candidates.tokens, expected)
  in_step = _by_step(run, batch, stage, context)
  jax.tree.map(np.testing.assert_array_equal, in_step, by_host.candidates)


def _context(run, stage) -> StageContext:
  context = run.stage_context(stage.retrieval)
  if not stage.reads_passages:
    return context
  components = Components({**run.components, "reader": WRITER}).for_vocabulary(
    vocab_size=run.corpus.vocab_size,
    separator_id=run.corpus.vocabulary.sep_id,
    views=run.corpus.view_sizes,
  )
  return dataclasses.replace(context, components=components)


def _config(run, examples, stage, model_dir) -> TrainConfig:
  """A run of one step, over the corpus and the snapshots of another run."""
  questions = isinstance(stage, OpenQa)
  return TrainConfig(
    model_dir=model_dir,
    data=DataConfig(
      corpus_dir=run.config.corpus_dir,
      pretraining_corpus_dir=None if questions else examples.corpus_dir,
      task=TASKS[type(stage)],
      question_files={"train": str(examples.question_file)}
      if questions
      else {},
      batch_size=8,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    ),
    stage=stage,
    retriever=tiny_world.RETRIEVER,
    reader=WRITER if stage.reads_passages else tiny_world.READER,
    optimizer=OptimizerConfig(learning_rate=1e-3),
    num_steps=1,
  )


def _by_host(run, config, batch):
  """The batch that the trainer prepares for its first step."""
  setup = set_up(config)
  decisions = Decisions(threading.Event(), num_steps=1, save_every_steps=1)
  with contextlib.ExitStack() as stack:
    schedule = stack.enter_context(
      contextlib.closing(open_schedule(setup, decisions))
    )
    pipeline = BatchPipeline(
      setup,
      [iter([batch])],
      schedule=schedule,
      decisions=decisions,
      start_step=0,
      resumed=LoopState(batch.positions, (StepRecord(0),)),
    )
    stack.enter_context(contextlib.closing(pipeline))
    return jax.device_get(pipeline.take(0, run.params).batch)


def _by_hand(run, batch, vectors, retrieval: Retrieval):
  """Rows of the candidates, from the definition, query by query."""
  every = run.snapshot.vectors(np.arange(run.corpus.num_blocks))
  rows = []
  for vector, source in zip(vectors, batch.array("source_hash"), strict=True):
    best = np.argsort(-(every @ vector), kind="stable")
    number = retrieval.num_searched(len(every))
    hashes = run.corpus.content_hashes[best[:number]]
    is_kept = (hashes != source) | (not retrieval.drop_source)
    own = best[:number][is_kept]
    own = [*own[: retrieval.num_kept]]
    own += [NULL_ROW] * (retrieval.num_kept - len(own))
    rows.append([NULL_ROW] * retrieval.null_block + own)
  return np.array(rows)


def _by_step(run, batch, stage, context):
  """Candidates that a step finds on the devices of the run."""
  retrieval, mesh, index = stage.retrieval, run.mesh, run.snapshot.index
  made, _ = stage.features(batch, None, context)
  reader = None
  if stage.reads_passages:
    reader = context.components.text_reader
  blocks = load_blocks(
    run.corpus, block_length=context.block_length, mesh=mesh, reader=reader
  )
  number = retrieval.num_searched(run.corpus.num_blocks)
  searched = SearchedBlocks(
    {} if retrieval.current_queries else run.snapshot.query_params,
    index.vectors,
    index.count,
    blocks,
    index.plan(number, num_queries=len(made.query)),
  )
  search = SearchInStep(
    *(run.components.retriever, retrieval, mesh, 1),
    passage_length=reader.input_length if reader else 0,
  )
  state = TrainState(np.int32(0), run.params, ())
  with jax.set_mesh(mesh):
    _, found, _ = jax.jit(search, static_argnums=3)(
      state, sharding.to_devices(made, mesh), searched, False
    )
  return found.candidates
