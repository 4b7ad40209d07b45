"""Exports the vectors of a generation as arrays that any library reads.

vectors.npy    [N, d] in float32, a row for each block
blocks.jsonl   {"id": …, "title": …} of each block, in the order of the rows
vectors.json   checkpoint, corpus, dimension and scale
"""

import numpy as np
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.generations.loading import corpus_of
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.generations.vectors import Embeddings, check_finite
from realm_jax.models.retriever import Retriever
from realm_jax.storage.access import require_readable
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.json_files import json_lines, write_json
from realm_jax.storage.local_disk import create_mapped_array
from realm_jax.weights import WeightsError
from realm_jax.weights.importing import check_new, new_directory

_VECTORS, _BLOCKS, _DESCRIPTION = "vectors.npy", "blocks.jsonl", "vectors.json"
_FORMAT_VERSION = 1
# Vectors that are converted at a time.
_CHUNK_BYTES = 1 << 25


def export_vectors(
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  output_dir: epath.PathLike,
  *,
  generations_dir: epath.PathLike | None = None,
  checkpoint_step: int | None = None,
) -> str:
  """Writes the vectors and the ids of all blocks, in bounded memory.

  Args:
    model_dir: Directory of the run.
    corpus_dir: Corpus that was embedded, in any version.
    retriever: Retriever of the run, which says what vectors are compared by.
    output_dir: Directory to make; it appears complete or not at all.
    generations_dir: Directory of the generations, if not in `model_dir`.
    checkpoint_step: Step of the generation; None takes the newest.

  Returns:
    Lines that say what was written.

  Raises:
    WeightsError: `output_dir` is not empty, or the retriever is of another
      dimension.
    GenerationError: There is no such generation, it is damaged, it is of
      another corpus, or a vector is not finite.
    CorpusError: There is no corpus.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.
  """
  require_readable(model_dir, corpus_dir)
  check_new(output_dir)
  store = GenerationStore(directory_of(model_dir, generations_dir))
  steps = store.steps() if checkpoint_step is None else [checkpoint_step]
  if not steps:
    raise GenerationError(
      f"{store.directory} has no generation; make one with "
      "`python -m realm_jax.build_index --once`"
    )
  step = steps[-1]
  directory, manifest = store.path(step), store.manifest(step)
  if manifest.dim != retriever.vector_size:
    raise WeightsError(
      f"{directory} has vectors of {manifest.dim} dimensions and the retriever "
      f"makes {retriever.vector_size}; give the model file of the run with "
      "--gin_file"
    )
  corpus = corpus_of(manifest, Corpus.open(corpus_dir), directory)
  embeddings = Embeddings.of(store.files(manifest), manifest)
  # The generation may be removed meanwhile.
  embeddings.map_all()
  num_blocks, dim = embeddings.shape
  with new_directory(output_dir) as output:
    with (
      atomic_file(output / _VECTORS) as path,
      Progress("vectors", total=num_blocks) as progress,
    ):
      array = create_mapped_array(path, np.float32, (num_blocks, dim))
      size = max(1, _CHUNK_BYTES // (4 * dim))
      for start in range(0, num_blocks, size):
        part = np.asarray(embeddings[start : start + size], np.float32)
        check_finite(part, np.arange(start, start + len(part)))
        array[start : start + len(part)] = part
        progress.advance(len(part))
      array.flush()
    with (
      json_lines(output / _BLOCKS) as write,
      Progress("ids", total=num_blocks) as progress,
    ):
      for row in range(num_blocks):
        block = corpus.block(row)
        write({"id": block.name, "title": block.title})
        progress.advance()
    write_json(
      output / _DESCRIPTION,
      {
        "format_version": _FORMAT_VERSION,
        "model_dir": str(model_dir),
        "checkpoint_step": manifest.step,
        "oldest_checkpoint_step": manifest.oldest_step,
        "corpus": corpus.name,
        "corpus_version": manifest.corpus_version,
        "corpus_fingerprint": manifest.corpus_fingerprint,
        "vocabulary_sha256": corpus.vocab_sha256,
        "num_blocks": num_blocks,
        "dimension": dim,
        "dtype": "float32",
        "stored_dtype": manifest.dtype,
        "similarity": "dot",
        "score_scale": retriever.score_scale,
        "normalized": retriever.normalize,
      },
    )
  return (
    f"{num_blocks} vectors of {dim} dimensions, of generation {manifest.step} "
    f"of {model_dir}: {_VECTORS}, {_BLOCKS} (id and title of each row) and "
    f"{_DESCRIPTION}"
  )
