"""Imports weights of other systems into a new MODEL_DIR.

MODEL_DIR/checkpoints/0   the parameters, as the trainer writes them
MODEL_DIR/vocab.txt       for build_corpus --vocab
MODEL_DIR/model.gin       for --gin_file
MODEL_DIR/generations/0…  the vectors of the released blocks, if there are any
CORPUS_DIR                the corpus of these blocks
"""

import contextlib
from collections.abc import Iterator

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import CheckpointStore, loop_record
from realm_jax.storage.access import require_writable
from realm_jax.storage.atomic import (
  atomic_text_file,
  check_target,
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.local_disk import explain_full_disk
from realm_jax.storage.paths import is_remote
from realm_jax.text.wordpieces import write_pieces
from realm_jax.training import kept_configuration
from realm_jax.weights import WeightsError
from realm_jax.weights.directory import VOCABULARY_FILE
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import gin_model, nested
from realm_jax.weights.plan import make_plan
from realm_jax.weights.released_blocks import (
  check_corpus_dir,
  open_released,
  publish,
  remove_corpus,
  write_corpus,
)
from realm_jax.weights.tables import RETRIEVER

_STEP = 0


def import_weights(config: ImportConfig, output_dir: epath.PathLike) -> str:
  """Writes a MODEL_DIR from weights of another system.

  Args:
    config: Weights to import, and what to make of them.
    output_dir: MODEL_DIR to make; it appears complete or not at all.

  Returns:
    Lines that say what was mapped, left out and randomly initialized.

  Raises:
    WeightsError: The input does not fit, or the output is not empty.
    VocabularyError: The input's vocabulary cannot be used.
    CorpusError, TargetError, DiskFullError: An output cannot be written.
    StoreAccessError: An output is in a bucket that cannot be written.
  """
  check_new(output_dir)
  check_corpus_dir(config, output_dir)
  require_writable(config.corpus_dir)
  plan = make_plan(config)
  released = open_released(config, plan)
  logging.info("Reading %s", plan.name)
  parameters, lines = plan.load(seed=config.seed)
  params = nested(parameters)
  retriever, reader, words = plan.model
  with contextlib.ExitStack() as undo:
    with new_directory(output_dir) as directory:
      write_pieces(directory / VOCABULARY_FILE, words.pieces)
      with atomic_text_file(directory / kept_configuration.MODEL) as file:
        file.write(gin_model(retriever, reader, source=plan.name))
      if released is not None:
        write_corpus(released, words)
        undo.callback(remove_corpus, released.corpus_dir)
        index = config.index or "scann"
        publish(released, directory, plan.model, params[RETRIEVER], index=index)
      # There is no position in the data, for no trainer wrote this checkpoint.
      loop = loop_record(None, vocabulary=words.sha256)
      # The checkpoint is last: it makes the directory a MODEL_DIR.
      with contextlib.closing(CheckpointStore(directory)) as store:
        logging.info("Writing checkpoint %d of %s", _STEP, output_dir)
        store.save(_STEP, {**params, "loop": loop})
        store.wait()
    undo.pop_all()
  vectors = plan.source.block_vectors
  if vectors is not None:
    done = "published as generation 0"
    if released is None:
      done = "left out; --corpus_dir imports them with their blocks"
    lines.append(f"block vectors {list(vectors.shape)}: {done}")
  return "\n".join(lines)


def check_new(output_dir: epath.PathLike) -> None:
  """Checks that a directory is absent or empty, and can be written.

  Raises:
    WeightsError: The directory has files in it.
    TargetError: The path is a file, or a disk is mounted there.
    StoreAccessError: The path is in a bucket that cannot be written.
  """
  require_writable(output_dir)
  path = epath.Path(output_dir)
  check_target(path)
  names = sorted(p.name for p in path.iterdir()) if path.exists() else []
  if names:
    held = f"has files in it ({', '.join(names[:3])}, …)"
    if "checkpoints" in names:
      held = "is a MODEL_DIR that has checkpoints already"
    raise WeightsError(f"{path} {held}; name a new directory for --output_dir")


@contextlib.contextmanager
def new_directory(output_dir: epath.PathLike) -> Iterator[epath.Path]:
  """Makes a directory to fill, which becomes `output_dir` at the end.

  If the block raises, the directory is removed. On an object store, which
  cannot rename, it is filled in place: the file that makes it valid must be
  written last.

  Raises:
    WeightsError, TargetError: As `check_new`, or another process fills it.
    DiskFullError: The disk is full.
  """
  check_new(output_dir)
  if is_remote(output_dir):
    yield epath.Path(output_dir)
    return
  advice = "free some space, or name another --output_dir"
  with (
    explain_full_disk(output_dir, advice=advice),
    staging_directory(output_dir) as staging,
  ):
    yield epath.Path(staging)
    check_new(output_dir)
    rename_into_place(staging, output_dir)
