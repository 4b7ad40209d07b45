"""The generation that an evaluation searches."""

from absl import logging
from etils import epath

from realm_jax.evaluation.trained_model import TrainedModel
from realm_jax.generations.loading import (
  Generation,
  load_generation,
  load_newest,
)
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.store import FOLDER, GenerationStore, step_of
from realm_jax.indexes.protocol import IndexConfig


def open_generation(
  model: TrainedModel,
  *,
  prefer_own: bool = False,
  index: IndexConfig | None = None,
) -> Generation:
  """Loads and verifies the generation that `model.source` names.

  Args:
    model: Checkpoint that searches the generation.
    prefer_own: Whether the generation built from this very checkpoint, if it
      is published, is preferred to the one that the checkpoint was trained
      with. A retriever without a reader is evaluated so.
    index: Index to build over the generation's blocks instead of its own.

  Raises:
    GenerationError: The generation is missing, damaged, or of another corpus.
  """
  settings = {"corpus": model.corpus, "mesh": model.mesh, "index": index}
  if model.source.generation is None:
    generations_dir = model.model_dir / FOLDER
    step = _default_step(model, generations_dir, prefer_own=prefer_own)
    generation = load_generation(generations_dir, step, **settings)
  else:
    path = epath.Path(model.source.generation)
    if (step := step_of(path)) is not None:
      generation = load_generation(path.parent, step, **settings)
    elif path.exists():
      generation = load_newest(path, **settings)
    else:
      raise GenerationError(
        f"{path} does not exist; want a generation, or a folder of them such "
        f"as MODEL_DIR/{FOLDER}"
      )
  logging.info(
    "Checkpoint %d searches generation %d (%s over %d blocks)",
    model.step,
    generation.step,
    generation.index.kind,
    generation.num_blocks,
  )
  if generation.corpus.version < model.corpus.version:
    logging.warning(
      "Generation %d is of version %d of the corpus, which has version %d by "
      "now; `python -m realm_jax.build_index --once` builds one of that "
      "version",
      generation.step,
      generation.corpus.version,
      model.corpus.version,
    )
  return generation


def _default_step(
  model: TrainedModel, generations_dir: epath.Path, *, prefer_own: bool
) -> int:
  published = GenerationStore(generations_dir).steps()
  wanted = model.generation_step
  if wanted is None or (prefer_own and model.step in published):
    wanted = model.step
  if wanted not in published:
    raise GenerationError(
      f"checkpoint {model.step} wants generation {wanted}, and "
      f"{generations_dir} has {published or 'none'}; build the newest "
      "checkpoint's with `python -m realm_jax.build_index --once`, or name "
      "one with GENERATION"
    )
  return wanted
