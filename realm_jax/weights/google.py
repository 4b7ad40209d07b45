"""Google's TensorFlow 1 checkpoints: BERT, and the released REALM and ORQA.

uncased_L-12_H-768_A-12                 BERT
  bert_config.json, vocab.txt, bert_model.ckpt.{index,data-…}
cc_news_pretrained/{embedder,bert}      pre-trained: retriever, reader
  variables/variables.{index,data-…}, assets/vocab.txt
  encoded/encoded.ckpt.{index,data-…}   vectors of all blocks
ict                                     ORQA's retriever
orqa_nq_model_from_realm                fine-tuned: both, in one checkpoint
  params.json, export/best_default/checkpoint/model.ckpt-…

In ORQA and REALM, a wrapped module has its variables below `module/`, once for
each wrapper. The layers next to an encoder reveal its role: a retriever has a
projection (`dense` and a LayerNorm), an open-QA reader has a span head
(`dense`, `dense_1` and a LayerNorm), and any other is the reader of
pre-training.
"""

import contextlib
import dataclasses
import glob
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from etils import epath

from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.text.vocabulary_files import VOCABULARY_FILE, read_vocabulary
from realm_jax.weights import WeightsError, name_maps
from realm_jax.weights.hf_files import (
  JsonFile,
  read_bert_config,
  read_open_qa_lengths,
)
from realm_jax.weights.mapped_weights import BLOCK_VECTORS, Encoder, Source
from realm_jax.weights.name_maps import READER, Module, Tensors

# TensorFlow must leave the GPUs to jax.
tf.config.set_visible_devices([], "GPU")

_CONFIG, _PARAMS = "bert_config.json", "params.json"
_INDEX, _ONLY_SHARD = ".index", ".data-00000-of-00001"
_WORDS = "bert/embeddings/word_embeddings"
# Google's GELU is the tanh approximation.
_NUMERICS: Mapping[str, Any] = {
  "activation": "gelu_tanh",
  "attention_mask_value": -10000.0,
}
# Size of the heads in every BERT that Google released.
_HEAD_SIZE = 64
# Names under which the released code exports TF-Hub modules.
_MODULES = ("embedder", "query_embedder", "ict", "bert")
# Checkpoint of a module, and checkpoint in a fine-tuned model's directory.
_VARIABLES = Path("variables", "variables")
_BEST = Path("export", "best_default", "checkpoint")
# The name of a LayerNorm reveals its library, tf.contrib or Keras, and thus its
# epsilon.
_EPSILONS = {"LayerNorm": 1e-12, r"layer_normalization(_\d+)?": 1e-3}
_RECORDS_PER_STEP = 1024
_RECORD_BUFFER_BYTES = 1 << 24


@contextlib.contextmanager
def open_checkpoint(prefix: Path) -> Iterator[Any]:
  """Opens a checkpoint by the path of its files without their suffixes."""
  try:
    reader = tf.train.load_checkpoint(str(prefix))
    # Read before allocating memory for sizes in the index.
    types = reader.get_variable_to_dtype_map()
    claimed = sum(
      math.prod(shape) * types[name].size
      for name, shape in reader.get_variable_to_shape_map().items()
    )
    files = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
    size = sum(file.stat().st_size for file in files)
    if claimed > size:
      raise RuntimeError(f"its index claims {claimed:,} bytes, it has {size:,}")
    yield reader
  # Errors of TensorFlow's reader for damaged files.
  except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
    lines = str(error).splitlines() or [type(error).__name__]
    raise WeightsError(
      f"the checkpoint {prefix} is not read ({lines[0]}); copy all of its "
      "files again"
    ) from error


def _open_block_vectors(prefix: Path) -> Rows | None:
  """Opens the vectors of all blocks in a checkpoint, if it has them.

  If they are the only variable, its single data file is the array: it is
  memory-mapped, without verifying its checksum.
  """
  with open_checkpoint(prefix) as reader:
    types = reader.get_variable_to_dtype_map()
    if BLOCK_VECTORS not in types:
      return None
    shape = tuple(reader.get_variable_to_shape_map()[BLOCK_VECTORS])
    dtype = np.dtype(types[BLOCK_VECTORS].as_numpy_dtype)
    data = prefix.with_name(prefix.name + _ONLY_SHARD)
    size = math.prod(shape) * dtype.itemsize
    if len(types) == 1 and data.is_file() and data.stat().st_size == size > 0:
      return np.memmap(data, dtype, mode="r", shape=shape)
    return reader.get_tensor(BLOCK_VECTORS)


def _prefixes(directory: Path) -> list[Path]:
  """Returns the prefixes of the checkpoints in a directory."""
  return [path.with_suffix("") for path in sorted(directory.glob(f"*{_INDEX}"))]


def locate_checkpoint(path: Path) -> Path:
  """Returns a checkpoint's prefix, from the prefix itself or its directory."""
  if not path.is_dir():
    return path.with_name(path.name.removesuffix(_INDEX))
  prefixes = _prefixes(path)
  if len(prefixes) != 1:
    names = ", ".join(prefix.name for prefix in prefixes) or "none"
    raise WeightsError(
      f"want one TensorFlow checkpoint in {path}, which has {len(prefixes)} "
      f"files that end in {_INDEX}: {names}; is it the right --input? A "
      f"checkpoint is chosen as --input={path}/PREFIX"
    )
  return prefixes[0]


def read_records(path: epath.PathLike) -> Iterator[bytes]:
  """Yields the raw records of a TFRecord file in order, in constant memory.

  The file is compressed if its name ends in `.gz`.
  """
  path, count = epath.Path(path), 0
  dataset = tf.data.TFRecordDataset(
    str(path),
    compression_type="GZIP" if path.suffix == ".gz" else "",
    buffer_size=_RECORD_BUFFER_BYTES,
  ).batch(_RECORDS_PER_STEP)
  try:
    for batch in dataset.as_numpy_iterator():
      count += len(batch)
      yield from batch.tolist()
  except tf.errors.OpError as error:
    raise WeightsError(
      f"{path} is not read after {count} records "
      f"({error.message.splitlines()[0]}); want a whole file of TFRecords"
    ) from error


def open_bert(path: Path) -> Source:
  """Opens a BERT, from its directory or the prefix of its checkpoint."""
  return _open(path, is_realm=False)


def open_realm(path: Path) -> Source:
  """Opens a retriever, a reader, or both.

  The input is a module, a directory of modules, the directory of a fine-tuned
  model, or the prefix of a checkpoint.
  """
  return _open(path, is_realm=True)


def _open(path: Path, *, is_realm: bool) -> Source:
  folders = {name: path / name for name in ("", *_MODULES)}
  prefixes = {
    name: folder / _VARIABLES
    for name, folder in folders.items()
    if (folder / f"{_VARIABLES}{_INDEX}").is_file()
  }
  if not prefixes:
    best = path / _BEST
    prefixes = {"": locate_checkpoint(best if _prefixes(best) else path)}
  elif "" in prefixes:
    prefixes = {"": prefixes[""]}
  within = path if path.is_dir() else path.parent
  params = JsonFile(within / _PARAMS, optional=True)
  roles, retriever_fields = ["query", "block", READER], {}
  if is_realm:
    roles = [READER]
    # A REALM retriever has a projection, even if its weights are elsewhere.
    retriever_fields = {"projection_size": BertRetriever.projection_size}
  variables: dict[str, np.ndarray] = {}
  encoders: list[Encoder] = []
  for module, prefix in prefixes.items():
    scope = f"{module}/" if module else ""
    with open_checkpoint(prefix) as reader:
      # For a scalar, the reader returns no array.
      tensors = {
        scope + name: np.asarray(reader.get_tensor(name))
        for name in sorted(reader.get_variable_to_shape_map())
      }
    variables |= tensors
    for name in tensors:
      if not f"/{name}".endswith(f"/{_WORDS}"):
        continue
      root = name.removesuffix(_WORDS)
      if is_realm:
        bert = _config(tensors, root, prefix, within)
      else:
        bert = _read_config(within / _CONFIG)
      encoder = _encoder(tensors, root, bert, params, roles, retriever_fields)
      if module == "query_embedder":
        encoder = encoder._replace(roles=["query"])
      elif "query_embedder" in prefixes and READER not in encoder.roles:
        encoder = encoder._replace(roles=["block"])
      encoders.append(encoder)
  encoded = [p for f in folders.values() for p in _prefixes(f / "encoded")]
  # Vectors of all blocks, from the embedder.
  vectors = _open_block_vectors(encoded[0]) if encoded else None
  assets = [within / name / "assets" for name in folders]
  files = [folder / VOCABULARY_FILE for folder in (within, *assets)]
  vocabularies = [
    read_vocabulary(file, normalizer="tensorflow_text" if is_realm else "bert")
    for file in files
    if file.is_file()
  ]
  return Source(variables, "tensorflow", encoders, vocabularies, vectors)


def _encoder(
  variables: Tensors,
  root: str,
  bert: BertConfig,
  params: JsonFile,
  roles: Sequence[str],
  retriever_fields: Mapping[str, Any],
) -> Encoder:
  """Returns an encoder with the layers next to it, which reveal its role."""
  prefix, head = f"{root}bert/", root + name_maps.HEAD
  has_pooler = f"{prefix}pooler/dense/kernel" in variables
  fields = {**retriever_fields, "pooling": "pooler" if has_pooler else "cls"}
  around, reader_fields = [], {}
  scopes = ["", *itertools.accumulate(re.findall(r"[^/]*/", root))]
  scopes = [name for name in scopes if f"{name}dense/kernel" in variables]
  if scopes:
    dense, score = f"{scopes[-1]}dense", f"{scopes[-1]}dense_1"
    norms = {
      name.removesuffix("/gamma"): eps
      for name in variables
      for pattern, eps in _EPSILONS.items()
      if re.fullmatch(f"{re.escape(scopes[-1])}{pattern}/gamma", name)
    }
    if len(norms) != 1:
      raise WeightsError(
        f"want one LayerNorm beside {dense}; there are {[*norms] or 'none'}"
      )
    ((norm, eps),) = norms.items()
    size = variables[f"{dense}/kernel"].shape[-1]
    if f"{score}/kernel" in variables:
      around = [
        Module("span_head/projection", dense),
        Module("span_head/norm", norm),
        Module("span_head/score", score),
      ]
      lengths = read_open_qa_lengths(params, bert)
      reader_fields = {"span_size": size // 2, "span_norm_eps": eps, **lengths}
    else:
      roles = ["query", "block"]
      around = [Module("projection", dense), Module("projection_norm", norm)]
      fields |= {"projection_size": size, "projection_norm_eps": eps}
  table = name_maps.bert(prefix, bert.num_layers, around)
  has_head = f"{head}/transform/dense/kernel" in variables
  of_head = name_maps.masked_lm_head(head) if has_head else ()
  return Encoder(prefix, bert, roles, table, of_head, fields, reader_fields)


def _config(
  variables: Tensors, root: str, prefix: Path, path: Path
) -> BertConfig:
  """Returns the configuration from a file, or else from the variables.

  The variables do not reveal the number of heads, which have 64 dimensions in
  every BERT that Google released.
  """
  # In a module, the file is beside the folder `variables`.
  for folder in (*prefix.parents[:2], path):
    if (folder / _CONFIG).is_file():
      return _read_config(folder / _CONFIG)
  inner = f"{root}bert/encoder/layer_0/intermediate/dense/kernel"
  positions = f"{root}bert/embeddings/position_embeddings"
  hidden_size = variables[root + _WORDS].shape[-1]
  missing = [name for name in (inner, positions) if name not in variables]
  if missing or hidden_size % _HEAD_SIZE:
    problem = f"no {missing[0]}" if missing else f"hidden size {hidden_size}"
    raise WeightsError(
      f"{prefix} has {problem}, so its variables do not show its sizes (heads "
      f"of {_HEAD_SIZE} dimensions); put the model's {_CONFIG} beside it"
    )
  layer = re.compile(rf"{re.escape(root)}bert/encoder/layer_(\d+)/.*")
  return BertConfig(
    hidden_size=hidden_size,
    num_layers=len({m[1] for m in map(layer.fullmatch, variables) if m}),
    num_heads=hidden_size // _HEAD_SIZE,
    intermediate_size=variables[inner].shape[-1],
    max_positions=variables[positions].shape[0],
    **_NUMERICS,
  )


def _read_config(path: Path) -> BertConfig:
  """Reads a `bert_config.json`, with the numerics of Google's code."""
  file = JsonFile(path)
  file.get("hidden_act", ("gelu",), "gelu")
  return dataclasses.replace(read_bert_config(file), **_NUMERICS)
