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
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import exports
from realm_jax.conversion.hugging_face.directory import WEIGHTS
from realm_jax.conversion.hugging_face.exports import ExportPlan
from realm_jax.conversion.hugging_face.sentence_transformers.exporting import (
  plan_sentence_export,
)
from realm_jax.conversion.mapping import show_shape
from realm_jax.conversion.output_directory import check_new, new_directory
from realm_jax.conversion.parameters import (
  BoundModel,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.planning import PARTS
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.files.json_file import whole_text_file, write_json
from realm_jax.files.object_store.store_access import require_readable
from realm_jax.files.whole.whole_file import whole_file
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, write_pieces


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
      ConversionError: If there is no vocabulary file.
    """
    path = epath.Path(self.vocab or epath.Path(self.model_dir, VOCABULARY_FILE))
    if self.vocab is None and not path.exists():
      if self.corpus_dir is None:
        raise ConversionError(
          f"{path} is not there: give --corpus_dir, the corpus that the model "
          "was trained on, or its vocab.txt as VOCAB"
        )
      path = epath.Path(self.corpus_dir, VOCABULARY_FILE)
    return BoundModel.of(self.retriever, self.reader, WordpieceVocabulary(path))


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
    to: Other system: one of `planning.SYSTEMS`.
    part: Part for hf_bert: `retriever` or `reader`.
    tower: `query` or `block`, if the retriever has two and one is wanted.

  Returns:
    Lines that say what was written, and which parameters were not.

  Raises:
    ConversionError: If the other system cannot express the model, the choices
      do not fit the system, or `output_dir` is not empty.
    CheckpointError: If there is no such checkpoint, or it is of another model
      or vocabulary.
    TargetError, DiskFullError: If `output_dir` cannot be written.
    StoreAccessError: If a bucket cannot be read or written.
  """
  require_readable(model.model_dir, model.vocab, model.corpus_dir)
  check_new(output_dir)
  bound = model.bind_vocabulary()
  plan = _plan(bound, to, part, tower)
  parameters, step = _parameters(model, bound, plan)
  with new_directory(output_dir) as directory:
    write_export(directory, plan, parameters, bound.vocabulary.pieces)
  return _report(plan, parameters, f"checkpoint {step} of {model.model_dir}")


def _plan(
  model: BoundModel, to: str, part: str | None, tower: str | None
) -> ExportPlan:
  """Plans the export, of which `part` says what to write for hf_bert."""
  if to == "sentence_transformers":
    if part is not None:
      raise ConversionError(
        f"--part={part} is not for --to={to}, which writes the retriever"
      )
    return plan_sentence_export(model, tower)
  if part not in PARTS:
    raise ConversionError(
      f"--to={to} wants --part=one of {', '.join(PARTS)}, not {part}"
    )
  return exports.plan_bert_export(model, part, tower)


def _parameters(
  model: TrainedModel, bound: BoundModel, plan: ExportPlan
) -> tuple[dict[str, np.ndarray], int]:
  """Returns the parameters of the plan's parts, by path, and their step."""
  shapes = parameter_shapes(bound.retriever, bound.reader, plan.parts)
  like = nested(
    {path: np.empty(shape, np.float32) for path, shape in shapes.items()}
  )
  with contextlib.closing(CheckpointStore(model.model_dir)) as store:
    step = model.checkpoint_step
    if step is None:
      step = store.latest()
    elif step == NAME:
      step = best_step(model.model_dir)
    store.require_vocabulary(step, bound.vocabulary.sha256)
    flat = flattened(store.restore(step, items=plan.parts, like=like))
  return {path: np.asarray(flat[path], np.float32) for path in shapes}, step


def write_export(
  directory: epath.Path,
  plan: ExportPlan,
  parameters: Mapping[str, np.ndarray],
  pieces: Sequence[str],
) -> None:
  """Writes the files of a planned export into a directory.

  Args:
    directory: Directory to fill.
    plan: Files, and names of the tensors.
    parameters: Parameters by path, of float32.
    pieces: Vocabulary.
  """
  write_pieces(directory / VOCABULARY_FILE, pieces)
  for name, content in plan.files.items():
    path = directory / name
    if content is None:
      path.mkdir(parents=True)
    else:
      write_json(path, content)
  for name, text in plan.texts.items():
    with whole_text_file(directory / name) as file:
      file.write(text)
  tensors: dict[str, dict[str, np.ndarray]] = {}
  for rule in plan.rules:
    array = parameters[rule.path]
    array = (array.T if rule.transpose else array) * np.float32(rule.scale)
    folder, _, name = rule.names[0].partition(".")
    if folder not in plan.folders:
      folder, name = "", rule.names[0]
    tensors.setdefault(folder, {})[name] = np.ascontiguousarray(array)
  # `save_file` does not report a full disk as an `OSError`; and transformers
  # reads no file that does not name its framework.
  for folder, named in tensors.items():
    with whole_file(directory / folder / WEIGHTS) as path:
      path.write_bytes(safetensors.numpy.save(named, metadata={"format": "pt"}))


def _report(
  plan: ExportPlan, parameters: dict[str, np.ndarray], where: str
) -> str:
  written = {rule.path for rule in plan.rules}
  left = [path for path in parameters if path not in written]
  lines = [f"written of {where} ({len(plan.rules)} tensors):"]
  for rule in plan.rules:
    shape = parameters[rule.path].shape
    stored = shape[::-1] if rule.transpose else shape
    lines.append(f"  {rule.names[0]} {show_shape(stored)} <- {rule.path}")
  lines.append(f"not written (parameters): {len(left) or 'none'}")
  lines += [f"  {path} {show_shape(parameters[path].shape)}" for path in left]
  return "\n".join([*lines, *plan.notes])
