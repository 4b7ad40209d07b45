"""A generation that is ready to be searched."""

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float32, Int

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.store import layout, query_tower
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.embeddings import Embeddings
from realm_jax.generations.store.manifest import GenerationError, Manifest
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  Blocks,
  BuildOptions,
  Index,
  IndexConfig,
  IndexCrashedError,
  IndexLoadError,
)
from realm_jax.indexes.registry import IndexKindError, config_from


@dataclasses.dataclass(frozen=True)
class Generation:
  """A verified generation with its index in memory.

  Attributes:
    step: the checkpoint that its vectors were made with.
    manifest: what it says of itself.
    corpus: whose blocks it holds, in the version that it was built on.
    index: what searches them.
    query_params: the tower that embeds queries for its vectors.
    embeddings: the vectors, memory-mapped.
  """

  step: int
  manifest: Manifest
  corpus: Corpus
  index: Index
  query_params: Any
  embeddings: Embeddings

  @property
  def oldest_step(self) -> int:
    """The checkpoint that its oldest vector was embedded with."""
    return self.manifest.oldest_step

  @property
  def num_blocks(self) -> int:
    """How many blocks it holds."""
    return self.manifest.num_blocks

  def vectors(self, rows: Int[np.ndarray, "*b"]) -> Float32[np.ndarray, "*b d"]:
    """The stored vectors of any rows."""
    return self.embeddings.gather(rows)


def blocks_of(corpus: Corpus, embeddings: Embeddings | None = None) -> Blocks:
  """What an index is built over, from a corpus and its vectors."""
  return Blocks(
    num_blocks=corpus.num_blocks,
    vectors=embeddings,
    token_ids=corpus.token_ids,
    vocab_size=corpus.vocab_size,
  )


def load_generation(
  generations_dir: epath.PathLike,
  step: int,
  *,
  corpus: Corpus,
  mesh: Any = None,
  place: Callable[[Any], Any] = lambda params: params,
  index: IndexConfig | None = None,
  stage: bool | None = None,
  cache_dir: epath.PathLike | None = None,
  gives_way: bool = False,
  isolate: bool = False,
) -> Generation:
  """Verifies a generation down to its checksums, and loads it in full.

  Args:
    generations_dir: where generations lie.
    step: which.
    corpus: the corpus in use; the generation may be of another version.
    mesh: where an index that lives on devices goes.
    place: puts the query tower's parameters on the devices.
    index: another index to search the same blocks with; None takes the one
      that the generation was built with.
    stage: whether files are copied to a local disk to be mapped from there;
      None does so for an object store.
    cache_dir: where they are staged.
    gives_way: whether checksums are read in the background, by one thread.
    isolate: whether an index whose library may crash is searched in a process
      of its own.

  Raises:
    GenerationError: it is missing, or of another corpus.
    DamagedGenerationError: it is not what was published.
    IndexCrashedError: the process of an isolated index crashed as it loaded.
  """
  directory = layout.path_of(generations_dir, step)
  manifest = manifests.read(directory)
  if manifest.step != step:
    raise GenerationError(
      f"{directory} holds the generation of step {manifest.step}; remove it"
    )
  corpus = _corpus_of(manifest, corpus, directory)
  if stage is None:
    stage = layout.is_remote(directory)
  source = (
    _staged(directory, manifest, cache_dir)
    if stage
    else nullcontext(Path(directory))
  )
  with source as local:
    files = local / manifest.folder
    check = functools.partial(
      manifests.verify, local, manifest, gives_way=gives_way, named=directory
    )
    check(checksums=False)
    try:
      embeddings = Embeddings(files, manifest)
    except GenerationError:
      check()
      raise
    blocks = blocks_of(corpus, embeddings)
    if index is not None:
      check()
      built = index.build(blocks, BuildOptions(mesh=mesh))
    else:
      try:
        config = config_from(manifest.index_kind, manifest.index_parameters)
        saved = files / manifest.index_kind
        if isolate and config.may_crash:
          built = _isolated(config, saved, blocks, check)
        else:
          check()
          built = config.load(saved, blocks, mesh=mesh)
      except (IndexKindError, IndexLoadError, IndexCrashedError) as error:
        # Where its files went or changed meanwhile, it is that.
        check()
        if isinstance(error, IndexCrashedError):
          raise
        raise GenerationError(f"{directory}: {error}") from error
    return Generation(
      step=step,
      manifest=manifest,
      corpus=corpus,
      index=built,
      query_params=place(query_tower.load(files)),
      embeddings=embeddings,
    )


def _isolated(
  config: IndexConfig, saved: Path, blocks: Blocks, check: Callable[[], None]
) -> IsolatedIndex:
  """An index that another process loads while the files are verified here."""
  index = IsolatedIndex(config, saved, blocks)
  try:
    check()
    index.wait_until_loaded()
  except BaseException:
    index.close()
    raise
  return index


def load_newest(
  generations_dir: epath.PathLike, *, corpus: Corpus, **settings: Any
) -> Generation:
  """The newest generation that is valid and of this corpus, any version.

  Args:
    generations_dir: where generations lie.
    corpus: the corpus in use; the generation may be of another version.
    **settings: as for `load_generation`.

  Raises:
    GenerationError: there is none.
  """
  refused = []
  for step in reversed(layout.published_steps(generations_dir)):
    try:
      return load_generation(generations_dir, step, corpus=corpus, **settings)
    except GenerationError as error:
      logging.warning("generation %d is not used: %s", step, error)
      refused.append(error)
  if refused:
    raise refused[0]
  raise GenerationError(
    f"{generations_dir} has no generation; make one with "
    "`python -m realm_jax.build_index --once`"
  )


def _corpus_of(
  manifest: Manifest, corpus: Corpus, directory: epath.Path
) -> Corpus:
  """The version of the corpus that a generation was built on."""
  if manifest.corpus_fingerprint == corpus.fingerprint:
    return corpus
  try:
    other = corpus.at(manifest.corpus_version, manifest.corpus_fingerprint)
  except CorpusError as error:
    raise GenerationError(
      f"{directory} is of another corpus: fingerprint "
      f"{manifest.corpus_fingerprint[:12]} with {manifest.num_blocks} blocks, "
      f"and {corpus.source} has {corpus.fingerprint[:12]} with "
      f"{corpus.num_blocks} ({error}); give the corpus it was built on, or "
      "build a generation of this one with `python -m realm_jax.build_index "
      "--once`"
    ) from error
  # The table of ids is made here, in the background, and not at a step.
  other.rows_of(other.block_ids[:1])
  return other


@contextmanager
def _staged(
  directory: epath.Path,
  manifest: Manifest,
  cache_dir: epath.PathLike | None,
) -> Iterator[Path]:
  """A copy of a generation's files on a local disk.

  It is unlinked as soon as everything is loaded: what is mapped stays
  readable, and a process that ends leaves nothing behind.
  """
  staged = Path(tempfile.mkdtemp(prefix="realm_generation_", dir=cache_dir))
  try:
    for file in manifest.files:
      target = staged / manifest.folder / file.path
      target.parent.mkdir(parents=True, exist_ok=True)
      # What is missing, the verification that follows says.
      with suppress(FileNotFoundError):
        (directory / manifest.folder / file.path).copy(target)
    yield staged
  finally:
    shutil.rmtree(staged, ignore_errors=True)
