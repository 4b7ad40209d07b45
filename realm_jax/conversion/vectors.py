"""Exports the vectors of a generation as arrays that any library reads.

vectors.npy    [N, d], float32 or float16, a row for each block
blocks.jsonl   {"id": …, "title": …} of each block, in the order of the rows
vectors.json   checkpoint, corpus, dimension and scale
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.output_directory import check_new, new_directory
from realm_jax.corpus.store import Corpus
from realm_jax.files import npy
from realm_jax.files.json_file import json_lines, write_json
from realm_jax.files.object_store.store_access import require_readable
from realm_jax.files.whole.whole_file import whole_file
from realm_jax.generations.follow.loading import corpus_of
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import Embeddings, check_finite
from realm_jax.generations.store.generation_files import GenerationFiles
from realm_jax.generations.store.manifest import GenerationError, Manifest
from realm_jax.models.retriever import Retriever
from realm_jax.settings import Unnamed

DTYPES = {"float32": np.float32, "float16": np.float16}
VECTORS, BLOCKS, DESCRIPTION = "vectors.npy", "blocks.jsonl", "vectors.json"
_FORMAT_VERSION = 1
# Vectors that are converted at a time.
_CHUNK_BYTES = 1 << 25


@dataclasses.dataclass(frozen=True)
class PublishedVectors:
  """The vectors of a published generation.

  Attributes:
    model_dir: Directory of the run.
    corpus_dir: Corpus that was embedded, in any version.
    retriever: Retriever of the run, which says what vectors are compared by.
    generations_dir: Directory of the generations, if not in `model_dir`.
    checkpoint_step: Step of the generation; None takes the newest.
  """

  model_dir: epath.PathLike
  corpus_dir: epath.PathLike
  retriever: Retriever
  generations_dir: epath.PathLike | None = None
  checkpoint_step: int | None = None

  @property
  def directory(self) -> epath.Path:
    """Directory of the generation; raises `GenerationError` without one."""
    folder = epath.Path(
      self.generations_dir or epath.Path(self.model_dir, layout.FOLDER)
    )
    steps = layout.published_steps(folder)
    step = self.checkpoint_step
    if step is None and steps:
      step = steps[-1]
    if step not in steps:
      found = ", ".join(map(str, steps)) or "none"
      raise GenerationError(
        f"{folder} has no generation"
        + ("" if step is None else f" of step {step}")
        + f" (published: {found}); make one with "
        "`python -m realm_jax.build_index --once`"
      )
    return layout.path_of(folder, step)


def export_vectors(
  published: PublishedVectors,
  output_dir: epath.PathLike,
  *,
  dtype: Annotated[str | None, Unnamed] = None,
) -> str:
  """Writes the vectors and the ids of all blocks, in bounded memory.

  Args:
    published: Generation to export.
    output_dir: Directory to make; it appears complete or not at all.
    dtype: One of `DTYPES`; None takes float32, which holds stored vectors of
      either type without rounding.

  Returns:
    Lines that say what was written.

  Raises:
    ConversionError: `output_dir` is not empty, the retriever is of another
      dimension, or a vector does not fit in float16.
    GenerationError: There is no such generation, it is damaged, or it is of
      another corpus.
    CorpusError: There is no corpus.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.
  """
  require_readable(published.model_dir, published.corpus_dir)
  check_new(output_dir)
  dtype = dtype or "float32"
  directory = published.directory
  manifest = manifests.read(directory)
  if manifest.dim != published.retriever.vector_size:
    raise ConversionError(
      f"{directory} has vectors of {manifest.dim} dimensions and the retriever "
      f"makes {published.retriever.vector_size}; give the model file of the "
      "run with --gin_file"
    )
  corpus = corpus_of(manifest, Corpus.open(published.corpus_dir), directory)
  embeddings = Embeddings(GenerationFiles(directory, manifest), manifest)
  # The generation may be removed meanwhile.
  embeddings.map_all()
  with new_directory(output_dir) as output:
    with whole_file(output / VECTORS) as path:
      _write_vectors(path, embeddings, dtype)
    with (
      json_lines(output / BLOCKS) as write,
      Progress("ids", total=corpus.num_blocks) as progress,
    ):
      for row in range(corpus.num_blocks):
        block = corpus.block(row)
        write({"id": block.name, "title": block.title})
        progress.advance()
    write_json(
      output / DESCRIPTION, _describe(published, manifest, corpus, dtype)
    )
  return "\n".join(
    [
      f"written of generation {manifest.step} of {published.model_dir}:",
      f"  {VECTORS} {[manifest.num_blocks, manifest.dim]} {dtype}"
      f" <- {manifest.dtype}",
      f"  {BLOCKS}: id and title of each row",
      f"  {DESCRIPTION}: checkpoint, corpus, dimension and scale",
    ]
  )


def _write_vectors(path: Path, embeddings: Embeddings, dtype: str) -> None:
  num_blocks, dim = embeddings.shape
  array = npy.create_mapped(path, DTYPES[dtype], (num_blocks, dim))
  size = max(1, _CHUNK_BYTES // (4 * dim))
  with Progress("vectors", total=num_blocks) as progress:
    for start in range(0, num_blocks, size):
      part = np.asarray(embeddings[start : start + size], np.float32)
      rows = np.arange(start, start + len(part))
      check_finite(part, rows)
      largest = float(np.abs(part).max())
      if largest > float(np.finfo(DTYPES[dtype]).max):
        raise ConversionError(
          f"a vector has the element {largest:g}, which is more than {dtype} "
          "holds; use --dtype=float32"
        )
      array[start : start + len(part)] = part
      progress.advance(len(part))
  array.flush()


def _describe(
  published: PublishedVectors, manifest: Manifest, corpus: Corpus, dtype: str
) -> dict[str, str | int | float | bool]:
  return {
    "format_version": _FORMAT_VERSION,
    "model_dir": str(published.model_dir),
    "checkpoint_step": manifest.step,
    "oldest_checkpoint_step": manifest.oldest_step,
    "corpus": corpus.name,
    "corpus_version": manifest.corpus_version,
    "corpus_fingerprint": manifest.corpus_fingerprint,
    "vocabulary_sha256": corpus.vocab_sha256,
    "num_blocks": manifest.num_blocks,
    "dimension": manifest.dim,
    "dtype": dtype,
    "stored_dtype": manifest.dtype,
    "similarity": "dot",
    "score_scale": published.retriever.score_scale,
    "normalized": published.retriever.normalize,
  }
