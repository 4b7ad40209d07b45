"""A checkpoint with its corpus, and the generation it searches."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
from absl import logging
from etils import epath
from flax import linen as nn
from jax.sharding import Mesh

from realm_jax.checkpoints.manager import (
  FOLDER,
  CheckpointError,
  CheckpointStore,
  locate,
)
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import (
  Generation,
  load_generation,
  load_newest,
)
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.stages import Models, Stage


@dataclasses.dataclass(frozen=True)
class Trained:
  """Parameters of one checkpoint, ready to be applied.

  Attributes:
    model_dir: the run's directory.
    step: the checkpoint's.
    generation_step: of the generation that the trainer had in use; None for
      a stage without an index.
    corpus: the newest version; a generation may be of an earlier one.
    models: the modules, over the corpus's vocabulary.
    params: by component, on every device of `mesh`.
    mesh: this process's devices.
  """

  model_dir: epath.Path
  step: int
  generation_step: int | None
  corpus: Corpus
  models: Models
  params: dict[str, Any]
  mesh: Mesh


def whole_batch(batch_size: int) -> int:
  """The batch size, rounded up so that this process's devices share it."""
  devices = jax.local_device_count()
  return max(1, -(-batch_size // devices)) * devices


def load_trained(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  stage: Stage,
  retriever: Retriever,
  reader: Reader | None = None,
  query_length: int,
  block_length: int,
  checkpoint_step: int | None = None,
) -> Trained:
  """Restores what a stage's evaluation applies, and nothing else.

  Args:
    model_dir: a MODEL_DIR, or one of its checkpoints.
    corpus_dir: what `build_corpus` wrote.
    stage: says which components there are, and their shapes.
    retriever: the towers of the checkpoint.
    reader: the reader, where the stage has one.
    query_length: the longest query.
    block_length: the longest block.
    checkpoint_step: which checkpoint; None takes the last.

  Raises:
    CheckpointError: it is missing, lacks a component, or is of another model
      or vocabulary.
    CorpusError: there is no corpus, or block_length would cut its blocks.
  """
  path = epath.Path(model_dir)
  if checkpoint_step is not None:
    path = path / FOLDER / str(checkpoint_step)
  store, step = locate(path)
  with contextlib.closing(store):
    present = store.items(step)
    if reader is not None and "reader" not in present:
      raise CheckpointError(
        f"checkpoint {step} of {store.directory} has no reader, only "
        f"{sorted(present)}: its stage trains none; measure what its "
        "retriever finds with gin/runs/eval_retrieval.gin, or give a run of "
        "open QA"
      )
    corpus = Corpus.open(corpus_dir)
    corpus.require_whole_blocks(block_length)
    require_vocabulary(store, step, corpus.vocab_sha256)
    vocabulary = {
      "vocab_size": corpus.vocabulary.vocab_size,
      "separator_id": corpus.vocabulary.sep_id,
    }
    models = Models(
      retriever.for_vocabulary(**vocabulary),
      None if reader is None else reader.for_vocabulary(**vocabulary),
    )
    mesh = make_mesh(devices=jax.local_devices())
    lengths = {"query": query_length, "block": block_length}
    like = _abstract(functools.partial(stage.init, models, lengths), mesh=mesh)
    return Trained(
      model_dir=store.directory.parent,
      step=step,
      generation_step=_generation_in_use(store, step, present),
      corpus=corpus,
      models=models,
      params=_restore(store, step, like, corpus=corpus),
      mesh=mesh,
    )


def _abstract(init: Any, *, mesh: Mesh) -> Any:
  boxed = jax.eval_shape(init, jax.random.key(0))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=rules.replicated(mesh)
    ),
    nn.unbox(boxed),
  )


def _generation_in_use(
  store: CheckpointStore, step: int, present: frozenset[str]
) -> int | None:
  if "loop" not in present:
    return None
  recorded = int(store.restore(step, items=("loop",))["loop"]["generation"])
  return recorded if recorded >= 0 else None


def _restore(
  store: CheckpointStore, step: int, like: Any, *, corpus: Corpus
) -> dict[str, Any]:
  try:
    return store.restore(step, items=tuple(like), like=like)
  except CheckpointError as error:
    raise CheckpointError(
      f"{error}\n  (the vocabulary is that of {corpus.directory}, "
      f"{corpus.vocab_size} wordpieces: is this the corpus, or one with the "
      "vocabulary, that the checkpoint was trained on?)"
    ) from error


def open_generation(
  trained: Trained,
  generation: epath.PathLike | None = None,
  *,
  prefer_own: bool = False,
  index: IndexConfig | None = None,
) -> Generation:
  """Loads and verifies the generation to search.

  Args:
    trained: the checkpoint.
    generation: a generation's directory, or a folder of generations, of
      which the newest is taken. None takes from MODEL_DIR the one that the
      checkpoint says was in use.
    prefer_own: take, if it is published, the generation made from this very
      checkpoint instead, as a retriever without a reader is judged.
    index: another index over the same blocks.

  Raises:
    GenerationError: it is missing, damaged, or of another corpus.
  """
  settings = {
    "corpus": trained.corpus,
    "mesh": trained.mesh,
    "place": functools.partial(
      jax.device_put, device=rules.replicated(trained.mesh)
    ),
    "index": index,
  }
  if generation is not None:
    path = epath.Path(generation)
    if (path / layout.MANIFEST).exists():
      step = manifests.read(path).step
      loaded = load_generation(path.parent, step, **settings)
    elif path.exists():
      loaded = load_newest(path, **settings)
    else:
      raise GenerationError(
        f"{path} does not exist; want a generation, or a folder of them such "
        f"as MODEL_DIR/{layout.FOLDER}"
      )
  else:
    generations_dir = trained.model_dir / layout.FOLDER
    step = _choose_step(trained, generations_dir, prefer_own=prefer_own)
    loaded = load_generation(generations_dir, step, **settings)
  logging.info(
    "checkpoint %d searches generation %d (%s over %d blocks)",
    trained.step,
    loaded.step,
    loaded.index.kind,
    loaded.num_blocks,
  )
  if loaded.corpus.version < trained.corpus.version:
    logging.warning(
      "generation %d is of version %d of the corpus, which has version %d by "
      "now; `python -m realm_jax.build_index --once` makes one of that",
      loaded.step,
      loaded.corpus.version,
      trained.corpus.version,
    )
  return loaded


def description(trained: Trained, generation: Generation) -> dict[str, Any]:
  """What was measured, for `metrics.json`."""
  return {
    "checkpoint": trained.step,
    "generation": generation.step,
    "index": generation.index.kind,
    "num_blocks": generation.num_blocks,
    "model_dir": str(trained.model_dir),
    "corpus_dir": str(trained.corpus.source),
    "corpus_fingerprint": generation.corpus.fingerprint,
    "corpus_version": generation.corpus.version,
  }


def _choose_step(
  trained: Trained, generations_dir: epath.Path, *, prefer_own: bool
) -> int:
  published = layout.published_steps(generations_dir)
  wanted = trained.generation_step
  if wanted is None or (prefer_own and trained.step in published):
    wanted = trained.step
  if wanted not in published:
    raise GenerationError(
      f"checkpoint {trained.step} wants generation {wanted}, and "
      f"{generations_dir} has {published or 'none'}; make the newest "
      "checkpoint's with `python -m realm_jax.build_index --once`, or name "
      "one with GENERATION"
    )
  return wanted
