"""Exports a checkpoint to the files of another system."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.checkpoints.best import NAME
from realm_jax.checkpoints.store import CheckpointStore, best_step
from realm_jax.files.json_file import JsonValue, whole_text_file, write_json
from realm_jax.files.object_store.store_access import require_readable
from realm_jax.files.whole.whole_file import whole_file
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, write_pieces
from realm_jax.weights import WeightsError, reading, sentence_transformers
from realm_jax.weights.config import (
  HF_ATTENTION_MASK_VALUE,
  TOKENIZER_CONFIG,
  tokenizer_config,
  write_bert_config,
)
from realm_jax.weights.hugging_face import CONFIG, WEIGHTS
from realm_jax.weights.importing import check_new, new_directory
from realm_jax.weights.model import (
  VOCABULARY_FILE,
  BoundModel,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.weights.tables import (
  HEAD,
  PARTS,
  READER,
  RETRIEVER,
  SEPARATE_TOWERS,
  SHARED_TOWER,
  TOWERS,
  Encoder,
  Table,
  reader_table,
  tower_table,
)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A checkpoint of a run, and its modules, which have no vocabulary yet.

  A `checkpoint_step` of None takes the last checkpoint, and "best" the one that
  `realm_jax.evaluate --follow` has named. A `vocab` of None takes the file in
  `model_dir`, where an import leaves it, or else that of the corpus in
  `corpus_dir`, which the model was trained on.
  """

  model_dir: epath.PathLike
  retriever: Retriever
  reader: Reader
  checkpoint_step: int | Literal["best"] | None = None
  vocab: epath.PathLike | None = None
  corpus_dir: epath.PathLike | None = None

  def bind_vocabulary(self) -> BoundModel:
    """Returns the modules with their vocabulary.

    Raises:
      WeightsError: There is no vocabulary file.
    """
    path = epath.Path(self.vocab or epath.Path(self.model_dir, VOCABULARY_FILE))
    if self.vocab is None and not path.exists():
      if self.corpus_dir is None:
        raise WeightsError(
          f"{path} is not there: give --corpus_dir, the corpus that the model "
          "was trained on, or its vocab.txt as VOCAB"
        )
      path = epath.Path(self.corpus_dir, VOCABULARY_FILE)
    return BoundModel.of(self.retriever, self.reader, WordpieceVocabulary(path))

  def restore(
    self, bound: BoundModel, part: str
  ) -> tuple[dict[str, np.ndarray], int]:
    """Returns the parameters of a part by path, and their step.

    Raises:
      CheckpointError: There is no such checkpoint, or it is of another model or
        vocabulary.
    """
    shapes = parameter_shapes(bound.retriever, bound.reader, [part])
    like = nested({p: np.empty(s, np.float32) for p, s in shapes.items()})
    with contextlib.closing(CheckpointStore(self.model_dir)) as store:
      step = self.checkpoint_step
      if step is None:
        step = store.latest()
      elif step == NAME:
        step = best_step(self.model_dir)
      store.require_vocabulary(step, bound.vocabulary.sha256)
      flat = flattened(store.restore(step, items=[part], like=like))
    return {path: np.asarray(flat[path], np.float32) for path in shapes}, step


@dataclasses.dataclass(frozen=True)
class Export:
  """The files of a directory for another system.

  Attributes:
    part: Part of the model whose parameters are written, completely or not.
    table: Names of its modules there.
    files: JSON files by path, of which None makes a directory.
    notes: Lines for the report: what the directory cannot say.
    readme: Text of README.md; empty without one.
    folders: Folders whose weights have files of their own; the names of their
      tensors begin with the folder and a dot.
  """

  part: str
  table: Table
  files: Mapping[str, JsonValue]
  notes: Sequence[str] = ()
  readme: str = ""
  folders: Sequence[str] = ()

  def write(
    self,
    directory: epath.Path,
    parameters: Mapping[str, np.ndarray],
    pieces: Sequence[str],
  ) -> list[str]:
    """Writes the files into a directory; returns lines for the report.

    Args:
      directory: Directory to fill.
      parameters: Parameters of the part by path, in float32.
      pieces: Vocabulary.
    """
    write_pieces(directory / VOCABULARY_FILE, pieces)
    for name, content in self.files.items():
      if content is None:
        (directory / name).mkdir(parents=True)
      else:
        write_json(directory / name, content)
    if self.readme:
      with whole_text_file(directory / sentence_transformers.README) as file:
        file.write(self.readme)
    by_folder: dict[str, dict[str, np.ndarray]] = {}
    lines, written = [], set()
    named = reading.write(parameters, self.table, "torch")
    for name, (path, tensor) in named.items():
      folder, _, of_module = name.partition(".")
      if folder not in self.folders:
        folder, of_module = "", name
      by_folder.setdefault(folder, {})[of_module] = tensor
      written.add(path)
      lines.append(f"  {name} {list(tensor.shape)} <- {path}")
    # `save_file` does not report a full disk as an `OSError`; and transformers
    # reads no file that does not name its framework.
    for folder, tensors in by_folder.items():
      with whole_file(directory / folder / WEIGHTS) as path:
        path.write_bytes(
          safetensors.numpy.save(tensors, metadata={"format": "pt"})
        )
    left = [path for path in parameters if path not in written]
    return [
      *lines,
      f"not written (parameters): {len(left) or 'none'}",
      *(f"  {path} {list(parameters[path].shape)}" for path in left),
      *self.notes,
    ]


def export_weights(
  model: TrainedModel,
  output_dir: epath.PathLike,
  *,
  to: str,
  part: str | None = None,
  tower: str | None = None,
) -> str:
  """Writes a checkpoint as a directory that another system reads.

  Args:
    model: Checkpoint to export.
    output_dir: Directory to make; it appears complete or not at all.
    to: Other system: `hf_bert` or `sentence_transformers`.
    part: Part for hf_bert: `retriever` or `reader`.
    tower: `query` or `block`, if the retriever has two and one is wanted.

  Returns:
    Lines that say what was written, and which parameters were not.

  Raises:
    WeightsError: The other system cannot express the model, the choices do not
      fit the system, or `output_dir` is not empty.
    CheckpointError: There is no such checkpoint, or it is of another model or
      vocabulary.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.
  """
  require_readable(model.model_dir, model.vocab, model.corpus_dir)
  check_new(output_dir)
  bound = model.bind_vocabulary()
  export = plan_export(bound, to=to, part=part, tower=tower)
  parameters, step = model.restore(bound, export.part)
  with new_directory(output_dir) as directory:
    lines = export.write(directory, parameters, bound.vocabulary.pieces)
  where = f"checkpoint {step} of {model.model_dir}"
  return "\n".join([f"written of {where}:", *lines])


def plan_export(
  model: BoundModel,
  *,
  to: str,
  part: str | None = None,
  tower: str | None = None,
) -> Export:
  """Plans the export of a model; for the choices, see `export_weights`."""
  retriever = model.retriever
  if to == "sentence_transformers":
    if part is not None:
      raise WeightsError(
        f"--part={part} is not for --to={to}, which writes the retriever"
      )
    ours = _choose_tower(retriever, tower)
    sentence = sentence_transformers.export_model(model, tower=tower)
    files = {**_class_files(retriever.bert, "BertModel"), **sentence.files}
    # Where types are among these names, the body of a pair has the type 1.
    types = ["token_type_ids"] if retriever.token_types else []
    names = ["input_ids", *types, "attention_mask"]
    files[TOKENIZER_CONFIG] = {
      **tokenizer_config(retriever.bert.max_positions),
      "model_input_names": names,
    }
    return Export(
      RETRIEVER,
      [*tower_table(ours, sentence.encoder, retriever.pooling)],
      files,
      [*_mask_note(retriever.bert), *sentence.notes],
      sentence.readme,
      sentence.folders,
    )
  if part == READER:
    if tower is not None:
      raise WeightsError(f"--tower={tower}: a reader has none")
    bert = model.reader.bert
    encoder = Encoder(bert, "bert.", "bert.pooler/dense", HEAD)
    return Export(
      READER,
      [*reader_table(encoder)],
      _class_files(bert, "BertForMaskedLM"),
      _mask_note(bert),
    )
  if part != RETRIEVER:
    raise WeightsError(
      f"--to={to} wants --part=one of {', '.join(PARTS)}, not {part}"
    )
  if retriever.projection_size is not None:
    raise WeightsError(
      f"the retriever projects to {retriever.projection_size} dimensions, as "
      "BERT does not; export it with --to=sentence_transformers, or the reader "
      "with --part=reader"
    )
  bert = retriever.bert
  ours = _choose_tower(retriever, tower)
  encoder = Encoder(bert, "", "pooler/dense")
  return Export(
    RETRIEVER,
    [*tower_table(ours, encoder, retriever.pooling)],
    _class_files(bert, "BertModel"),
    [
      *_mask_note(bert),
      f"pooling {retriever.pooling!r} and score_scale="
      f"{retriever.score_scale:g} are not written; --to=sentence_transformers "
      "writes how vectors are made",
    ],
  )


def _choose_tower(retriever: Retriever, tower: str | None) -> str:
  """Returns the name of the tower that the user means."""
  if retriever.shared_towers:
    if tower is not None:
      raise WeightsError(
        f"--tower={tower}: the towers of this model are one; leave it out"
      )
    return SHARED_TOWER[0]
  if tower is None:
    raise WeightsError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return SEPARATE_TOWERS[TOWERS.index(tower)]


def _class_files(bert: BertConfig, architecture: str) -> dict[str, JsonValue]:
  """Returns the JSON files of a class of BERT."""
  return {
    CONFIG: {
      "architectures": [architecture],
      "model_type": "bert",
      "torch_dtype": "float32",
      **write_bert_config(bert),
    },
    TOKENIZER_CONFIG: tokenizer_config(bert.max_positions),
  }


def _mask_note(bert: BertConfig) -> list[str]:
  """Returns a note if padding is masked by another value than transformers'."""
  value = bert.attention_mask_value
  if value == HF_ATTENTION_MASK_VALUE:
    return []
  return [
    f"attention_mask_value={value} is not written; transformers adds the "
    "lowest float to the scores of padding"
  ]
