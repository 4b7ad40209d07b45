"""A model's directory as Hugging Face's `save_pretrained` writes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.models.bert import BertConfig
from realm_jax.storage.atomic import atomic_file, atomic_text_file
from realm_jax.storage.json_files import JsonValue, write_json
from realm_jax.text.wordpieces import write_pieces
from realm_jax.weights import WeightsError, config, reading
from realm_jax.weights.model import VOCABULARY_FILE
from realm_jax.weights.tables import Table
from realm_jax.weights.unpickling import read_torch_file

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_TORCH_WEIGHTS = "pytorch_model.bin"


class StoredTensor:
  """A tensor of a safetensors file, read as a whole or in slices of rows."""

  def __init__(self, file: safetensors.safe_open, name: str) -> None:
    self._file, self._name = file, name
    self.shape = tuple(file.get_slice(name).get_shape())

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    """Returns the tensor in its stored dtype."""
    del dtype, copy
    return self._file.get_tensor(self._name)

  def __getitem__(self, rows: slice) -> np.ndarray:
    first, limit, _ = rows.indices(self.shape[0])
    return self._file.get_slice(self._name)[first:limit]

  @property
  def dtype(self) -> np.dtype:
    return self[:0].dtype


def open_tensors(directory: Path, *, optional: bool = False) -> dict[str, Any]:
  """Opens the weights of a directory by name, in their own dtypes.

  Raises:
    WeightsError: They are damaged or in shards, or there are none and they are
      not optional.
  """
  if (path := directory / WEIGHTS).exists():
    try:
      file = safetensors.safe_open(path, framework="numpy")
      names = file.keys()
      return {name: StoredTensor(file, name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
      raise WeightsError(
        f"{path} is not read ({error}); copy it again"
      ) from error
  if (directory / _TORCH_WEIGHTS).exists():
    return read_torch_file(directory / _TORCH_WEIGHTS)
  if optional:
    return {}
  names = ", ".join(sorted(p.name for p in directory.iterdir())) or "no files"
  raise WeightsError(
    f"{directory} holds no {WEIGHTS}; it has {names}. Weights in shards must "
    "be loaded with transformers and saved again as one file, with "
    'max_shard_size="20GB"'
  )


class Export(NamedTuple):
  """A directory to write.

  Attributes:
    part: Part of the model whose parameters are written, completely or not.
    table: Names of its modules there, without the part in ours.
    files: Contents of other files by path: texts, or JSON values.
    notes: Lines for the report: what the directory cannot say.
    folders: Folders to make. Tensors whose names begin with one and a dot have
      a file of weights in it.
  """

  part: str
  table: Table
  files: Mapping[str, JsonValue]
  notes: Sequence[str] = ()
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
    for folder in self.folders:
      (directory / folder).mkdir(parents=True)
    write_pieces(directory / VOCABULARY_FILE, pieces)
    for name, content in self.files.items():
      if isinstance(content, str):
        with atomic_text_file(directory / name) as file:
          file.write(content)
      else:
        write_json(directory / name, content)
    by_folder: dict[str, dict[str, np.ndarray]] = {}
    left, lines = dict(parameters), []
    named = reading.write(parameters, self.table, "torch")
    for name, (path, tensor) in named.items():
      folder, _, of_module = name.partition(".")
      if folder not in self.folders:
        folder, of_module = "", name
      by_folder.setdefault(folder, {})[of_module] = tensor
      left.pop(path)
      lines.append(f"  {reading.show(name, tensor.shape)} <- {path}")
    # `save_file` does not report a full disk as an `OSError`; and transformers
    # reads no file that does not name its framework.
    for folder, tensors in by_folder.items():
      content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
      with atomic_file(directory / folder / WEIGHTS) as path:
        path.write_bytes(content)
    lines.append(f"parameters that are not written: {len(left) or 'none'}")
    lines += [f"  {reading.show(p, array.shape)}" for p, array in left.items()]
    return [*lines, *self.notes]


def class_files(
  bert: BertConfig, architecture: str, *, cased: bool
) -> dict[str, JsonValue]:
  """Returns the JSON files of a class of BERT."""
  return {
    CONFIG: {
      "architectures": [architecture],
      "model_type": "bert",
      "torch_dtype": "float32",
      **config.write_bert_config(bert),
    },
    config.TOKENIZER: config.tokenizer_config(bert.max_positions, cased=cased),
  }
