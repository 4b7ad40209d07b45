"""A trained model: the parameters of one checkpoint, and its corpus."""

import contextlib
import dataclasses
import functools
from typing import Literal

import jax
from etils import epath
from flax.core import meta
from jax.sharding import Mesh

from realm_jax.checkpoints.store import (
  FOLDER,
  CheckpointError,
  locate,
  recorded_generation,
)
from realm_jax.corpus.store import Corpus, require_block_length
from realm_jax.inputs.config import BlockLength, QueryLength
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.settings import NonNegativeInt, require_valid
from realm_jax.storage.access import require_readable
from realm_jax.training.stages.stage import Models, Stage


@dataclasses.dataclass(frozen=True)
class ModelSource:
  """Where an evaluation finds its model, and how long the model's inputs are.

  Attributes:
    model_dir: MODEL_DIR of a run, or one of its checkpoints.
    corpus_dir: Corpus directory, as `build_corpus` wrote it.
    retriever: Retriever of the run.
    reader: Reader of the run; None to load the retriever alone.
    generation: Generation to search, or a folder of generations, of which the
      newest is taken. None takes the one that the checkpoint was trained with.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the one that `realm_jax.evaluate --follow` has named.
    query_length: Maximum tokens of a query, [CLS] and [SEP] included.
    block_length: Maximum tokens of a block.
  """

  model_dir: epath.PathLike
  corpus_dir: epath.PathLike
  retriever: Retriever
  reader: Reader | None = None
  generation: epath.PathLike | None = None
  checkpoint_step: NonNegativeInt | Literal["best"] | None = None
  query_length: QueryLength = 64
  block_length: BlockLength = 288

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A checkpoint's parameters on this process's devices.

  Attributes:
    source: Configuration that the model was loaded by.
    model_dir: Directory of the run.
    step: Step of the checkpoint.
    generation_step: Step of the generation that the trainer was using; None
      for a run without generations.
    corpus: Newest version of the corpus. A generation may be of an older one.
    models: Modules, with the corpus's vocabulary.
    params: Parameters by component, replicated over `mesh`.
    mesh: Mesh of this process's devices.
  """

  source: ModelSource
  model_dir: epath.Path
  step: int
  generation_step: int | None
  corpus: Corpus
  models: Models
  params: Params
  mesh: Mesh


def whole_batch(batch_size: int) -> int:
  """Rounds a batch size up to a multiple of this process's devices."""
  devices = jax.local_device_count()
  return max(1, -(-batch_size // devices)) * devices


def load_model(source: ModelSource, stage: Stage) -> TrainedModel:
  """Restores the components that the evaluation of a stage applies.

  Raises:
    CheckpointError: The checkpoint is missing, lacks a component, or belongs
      to another model or vocabulary.
    CorpusError: There is no corpus, or block_length is not that of its blocks.
    StoreAccessError: A bucket cannot be read.
  """
  require_readable(source.model_dir, source.corpus_dir, source.generation)
  path = epath.Path(source.model_dir)
  if source.checkpoint_step is not None:
    path = path / FOLDER / str(source.checkpoint_step)
  store, step = locate(path)
  with contextlib.closing(store):
    present = store.items(step)
    if source.reader is not None and "reader" not in present:
      raise CheckpointError(
        f"checkpoint {step} of {store.directory} has no reader, only "
        f"{sorted(present)}: its stage trains none; evaluate its retriever "
        "with gin/runs/eval_retrieval.gin, or give a run of open QA"
      )
    corpus = Corpus.open(source.corpus_dir)
    require_block_length(source.block_length, corpus)
    store.require_vocabulary(step, corpus.vocab_sha256)
    models = Models(source.retriever, source.reader).for_corpus(corpus)
    mesh = make_mesh(devices=jax.local_devices())
    lengths = {"query": source.query_length, "block": source.block_length}
    abstract = jax.eval_shape(
      functools.partial(stage.init, models, lengths), jax.random.key(0)
    )
    like = sharding.abstract_replicated(meta.unbox(abstract), mesh)
    try:
      params = store.restore(step, items=tuple(like), like=like)
    except CheckpointError as error:
      raise CheckpointError(
        f"{error}\n  (the vocabulary is that of {corpus.source}, "
        f"{corpus.vocab_size} wordpieces: was the checkpoint trained on this "
        "corpus, or on one with the same vocabulary?)"
      ) from error
    return TrainedModel(
      source=source,
      model_dir=store.directory.parent,
      step=step,
      generation_step=recorded_generation(store.loop_item(step)),
      corpus=corpus,
      models=models,
      params=params,
      mesh=mesh,
    )
