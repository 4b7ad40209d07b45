"""Exports a checkpoint, or a snapshot's vectors, for other systems.

Vectors are written as files that any library can read:

vectors.npy    [N, d] in float32, a row for each block; or, for FAISS,
index.faiss    a flat index of inner products with the same vectors
blocks.jsonl   {"id": …, "title": …} of each block, in the order of the rows
vectors.json   checkpoint, corpus, dimension and scale
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from etils import epath

from realm_jax.checkpoints.store import FOLDER, READER_VOCABULARY, locate
from realm_jax.console import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.indexes import faiss
from realm_jax.indexes.protocol import Blocks
from realm_jax.models import lora
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.snapshots.loading import corpus_of
from realm_jax.snapshots.manifest import SnapshotError
from realm_jax.snapshots.store import SnapshotStore, directory_of
from realm_jax.snapshots.vectors import Embeddings, check_finite
from realm_jax.storage.access import require_readable
from realm_jax.storage.atomic import atomic_file, atomic_text_file
from realm_jax.storage.json_files import json_lines, write_json
from realm_jax.storage.local_disk import create_mapped_array
from realm_jax.text.sentencepieces import MODEL_FILE, read_sentencepieces
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import (
  has_vocabulary,
  read_vocabulary,
  write_vocabulary,
)
from realm_jax.weights import WeightsError, modernbert, name_maps
from realm_jax.weights.hf_files import Export
from realm_jax.weights.importing import new_directory
from realm_jax.weights.mapped_weights import BoundModel, flattened, nested
from realm_jax.weights.name_maps import READER, RETRIEVER
from realm_jax.weights.registry import HF_BERT, T5
from realm_jax.weights.sentence_transformers import export_tower
from realm_jax.weights.t5 import export_t5
from realm_jax.weights.tensor_files import write_tensors

_VECTORS, _BLOCKS, _DESCRIPTION = "vectors.npy", "blocks.jsonl", "vectors.json"
_FORMAT_VERSION = 1
# Bytes of vectors that are converted at a time.
_CHUNK_BYTES = 1 << 25


def export_weights(
  model_dir: epath.PathLike,
  retriever: BertRetriever,
  reader: BertReader | GenerativeReader | None,
  output_dir: epath.PathLike,
  *,
  to: str,
  tower: str | None = None,
  checkpoint_step: int | Literal["best"] | None = None,
  vocab: epath.PathLike | None = None,
  corpus_dir: epath.PathLike | None = None,
) -> str:
  """Writes a checkpoint as a directory for another system.

  Args:
    model_dir: Directory of the run.
    retriever: Retriever of the run, without a vocabulary.
    reader: Reader of the run, if any, without a vocabulary.
    output_dir: Directory to make; it appears complete or not at all.
    to: `sentence_transformers` for the retriever, `hf_bert` for a BERT reader,
      or `hf_t5` for a reader that writes.
    tower: `query` or `block`, if the retriever has two, or `hop`, the tower
      of the second search.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the best one of `realm_jax.evaluate --follow`.
    vocab: Vocabulary file; None takes the one in `model_dir`, from an import,
      or else the corpus's.
    corpus_dir: Corpus that the model was trained on.

  Returns:
    A report of the files, and of parameters that were not written.

  Raises:
    WeightsError: The other system cannot express the model, the options do not
      fit the system, there is no vocabulary, or `output_dir` is not empty.
    CheckpointError: There is no such checkpoint, or it has another model or
      vocabulary.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.

  Example:
    >>> report = export_weights(
    ...   "runs/qa", run.config.retriever, run.config.reader, "exported",
    ...   to="hf_bert", corpus_dir="corpus",
    ... )
    >>> sorted(path.name for path in epath.Path("exported").iterdir())
    ['config.json', 'model.safetensors', 'tokenizer_config.json', ...]
  """
  require_readable(model_dir, vocab, corpus_dir)
  writes = isinstance(reader, GenerativeReader)
  if to in (T5, HF_BERT) and (reader is None or writes != (to == T5)):
    raise WeightsError(
      f"--to={to} does not fit the reader of the run "
      f"({reader and type(reader).__name__}): --to={HF_BERT} is for a "
      f"BertReader, and --to={T5} for a GenerativeReader"
    )
  if to in (T5, HF_BERT) and tower is not None:
    raise WeightsError(f"--tower={tower}: a reader has none; leave it out")
  checkpoint = epath.Path(model_dir)
  if checkpoint_step is not None:
    checkpoint = checkpoint / FOLDER / str(checkpoint_step)
  if isinstance(reader, GenerativeReader) and to == T5:
    return _export_text_reader(
      checkpoint, reader, output_dir, vocab, corpus_dir
    )
  if not isinstance(reader, BertReader):
    # A placeholder, as only the retriever is exported.
    reader = BertReader(retriever.bert)
  with new_directory(output_dir) as directory:
    path = vocab or model_dir
    if vocab is None and not has_vocabulary(model_dir):
      if corpus_dir is None:
        raise WeightsError(
          f"{model_dir} has no vocabulary: give --corpus_dir, the corpus that "
          "the model was trained on, or its vocabulary as VOCAB"
        )
      path = corpus_dir
    words = read_vocabulary(path)
    model = BoundModel.of(retriever, reader, words)
    export = plan_export(model, to=to, tower=tower)
    part, module = RETRIEVER, retriever
    if to == HF_BERT:
      part, module = READER, reader
    shapes = model.parameter_shapes([part])
    like = nested({p: np.empty(s, np.float32) for p, s in shapes.items()})
    store, step = locate(checkpoint)
    with contextlib.closing(store):
      store.require_vocabulary(step, model.vocabulary.digest)
      flat = flattened(store.restore(step, items=[part], like=like))
    parameters = {path: np.asarray(flat[path], np.float32) for path in shapes}
    parameters = lora.merged(parameters, module.bert.lora)
    lines = write_export(export, directory, parameters, words)
  return "\n".join([f"written of checkpoint {step} of {model_dir}:", *lines])


def _export_text_reader(
  checkpoint: epath.Path,
  reader: GenerativeReader,
  output_dir: epath.PathLike,
  vocab: epath.PathLike | None,
  corpus_dir: epath.PathLike | None,
) -> str:
  """Writes a T5 with the vocabulary of the reader's view."""
  store, step = locate(checkpoint)
  with contextlib.closing(store), new_directory(output_dir) as directory:
    model_file = epath.Path(store.directory.parent, MODEL_FILE)
    if vocab is None and corpus_dir is not None and not model_file.exists():
      words: Any = Corpus.open(corpus_dir).view(reader.view).vocabulary
    else:
      words = read_sentencepieces(vocab or model_file)
    store.require_vocabulary(step, words.digest, name=READER_VOCABULARY)
    params = store.restore(step, items=("reader",))["reader"]["model"]
    config = reader.t5.for_vocabulary(words.size)
    export_t5(config, params, directory)
    (directory / MODEL_FILE).write_bytes(words.model)
  return f"written of checkpoint {step} of {store.directory.parent}"


def plan_export(
  model: BoundModel, *, to: str, tower: str | None = None
) -> Export:
  """Plans the export of a model; for the choices, see `export_weights`."""
  retriever, reader, words = model
  if to == HF_BERT:
    return modernbert.export_encoder(
      reader.bert, words, path=READER, masked_lm=True
    )
  if tower == "hop":
    if retriever.hop_length is None:
      raise WeightsError(
        "--tower=hop: this model has no tower for a second search; leave it out"
      )
    return export_tower(model, tower)
  if retriever.shared_towers and tower is not None:
    raise WeightsError(
      f"--tower={tower}: the towers of this model are one; leave it out"
    )
  if not retriever.shared_towers and tower is None:
    raise WeightsError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return export_tower(model, tower)


def write_export(
  export: Export,
  directory: epath.Path,
  parameters: Mapping[str, np.ndarray],
  vocabulary: BertVocabulary,
) -> list[str]:
  """Writes the files of an export; returns lines for the report.

  The `parameters` of the part are given by path, in float32.
  """
  for folder in export.folders:
    (directory / folder).mkdir(parents=True)
  write_vocabulary(directory, vocabulary)
  for name, content in export.files.items():
    if isinstance(content, str):
      with atomic_text_file(directory / name) as file:
        file.write(content)
    else:
      write_json(directory / name, content)
  by_folder: dict[str, dict[str, np.ndarray]] = {}
  named, lines = name_maps.write(parameters, export.table), []
  for path, (name, tensor) in named.items():
    folder, _, of_module = name.partition(".")
    if folder not in export.folders:
      folder, of_module = "", name
    by_folder.setdefault(folder, {})[of_module] = tensor
    lines.append(f"  {name_maps.show(name, tensor.shape)} <- {path}")
  by_folder[""] = export.convert(by_folder[""])
  for folder, tensors in by_folder.items():
    write_tensors(directory / folder, tensors)
  left = [
    f"  {name_maps.show(path, array.shape)}"
    for path, array in parameters.items()
    if path not in named
  ]
  lines.append(f"parameters that are not written: {len(left) or 'none'}")
  return [*lines, *left, *export.notes]


def export_vectors(
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: BertRetriever,
  output_dir: epath.PathLike,
  *,
  to: Literal["vectors", "faiss"] = "vectors",
  snapshots_dir: epath.PathLike | None = None,
  checkpoint_step: int | None = None,
) -> str:
  """Writes the vectors and the ids of all blocks, in bounded memory.

  A FAISS index is built in memory, from vectors on the disk.

  Args:
    model_dir: Directory of the run.
    corpus_dir: Corpus that was embedded, in any version.
    retriever: Retriever of the run, with the scale of inner products.
    output_dir: Directory to make; it appears complete or not at all.
    to: `vectors` for vectors.npy, or `faiss` for index.faiss.
    snapshots_dir: Directory of the snapshots, if not in `model_dir`.
    checkpoint_step: Step of the snapshot; None takes the newest.

  Returns:
    A report of the files.

  Raises:
    WeightsError: `output_dir` is not empty, or the retriever has another
      dimension.
    RealmError: FAISS is not installed.
    SnapshotError: There is no such snapshot, it is damaged or for another
      corpus, or a vector is not finite.
    CorpusError: There is no corpus.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.

  Example:
    >>> retriever = run.config.retriever
    >>> print(export_vectors("runs/qa", "corpus", retriever, "vectors"))
    28 vectors of 8 dimensions, of snapshot 0 of runs/qa: vectors.npy, ...
    >>> np.load("vectors/vectors.npy").shape
    (28, 8)
  """
  require_readable(model_dir, corpus_dir)
  with new_directory(output_dir) as output:
    store = SnapshotStore(directory_of(model_dir, snapshots_dir))
    steps = store.steps() if checkpoint_step is None else [checkpoint_step]
    if not steps:
      raise SnapshotError(
        f"{store.directory} has no snapshot; make one with "
        "`python -m realm_jax.build_index --once`"
      )
    directory, manifest = store.path(steps[-1]), store.manifest(steps[-1])
    if manifest.dim != retriever.vector_size:
      raise WeightsError(
        f"{directory} has vectors of {manifest.dim} dimensions and the "
        f"retriever makes {retriever.vector_size}; give the model file of the "
        "run with --gin_file"
      )
    corpus = corpus_of(manifest, Corpus.open(corpus_dir), directory)
    embeddings = Embeddings(store.files(manifest), manifest)
    # Mapped first, because the snapshot may be removed.
    embeddings.map_all()
    num_blocks, dim = embeddings.shape
    name = faiss.FILE if to == "faiss" else _VECTORS
    with (
      atomic_file(output / name) as path,
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
      if to == "faiss":
        folder = path.with_name(f"{path.name}.faiss")
        faiss.FaissConfig(factory="Flat").build(
          Blocks(num_blocks, array), folder
        )
        (folder / faiss.FILE).replace(path)
        folder.rmdir()
    with (
      json_lines(output / _BLOCKS) as write,
      Progress("ids", total=num_blocks) as progress,
    ):
      for row in range(num_blocks):
        block = corpus.block(row)
        write({"id": block.id, "title": block.title})
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
    f"{num_blocks} vectors of {dim} dimensions, of snapshot {manifest.step} "
    f"of {model_dir}: {name}, {_BLOCKS} (id and title of each row) and "
    f"{_DESCRIPTION}"
  )
