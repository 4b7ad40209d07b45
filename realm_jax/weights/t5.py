"""T5 in the files of Hugging Face, Fusion-in-Decoder, Atlas, t5x and Mesh.

| files | from |
| --- | --- |
| config.json and model.safetensors or pytorch_model.bin, whole or in shards | \
T5, T5 1.1, LM-adapted, Flan-T5, mT5 |
| config.json and pytorch_model.bin | Fusion-in-Decoder |
| model.pth.tar (reads only its `reader`) | Atlas |
| checkpoint, and folders of arrays | t5x |
| model.ckpt-STEP.index, model.ckpt-STEP.data-… | Mesh TensorFlow, with T5 for \
closed book |
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from etils import epath

from realm_jax.models import lora
from realm_jax.models.parameters import Params
from realm_jax.models.t5 import T5, Activation, T5Config
from realm_jax.settings import DropoutRate, PositiveFloat, PositiveInt
from realm_jax.storage.json_files import write_json
from realm_jax.weights import WeightsError, name_maps, t5x
from realm_jax.weights.hf_files import CONFIG, JsonFile
from realm_jax.weights.mapped_weights import flattened, nested
from realm_jax.weights.name_maps import Module, Tensors
from realm_jax.weights.tensor_files import open_tensors, write_tensors

_READER = "reader."
_BLOCK = re.compile(r"(encoder|decoder)\.block\.(\d+)\..*")
_FEED_FORWARD: Mapping[str, tuple[Activation, bool]] = {
  "relu": ("relu", False),
  "gated-gelu": ("gelu_tanh", True),
}
# Other fields in config.json, and their types.
_KEYS = {
  "max_distance": ("relative_attention_max_distance", PositiveInt),
  "norm_eps": ("layer_norm_epsilon", PositiveFloat),
  "dropout_rate": ("dropout_rate", DropoutRate),
  "start_id": ("decoder_start_token_id", int),
  "end_id": ("eos_token_id", int),
}
# Fusion-in-Decoder was trained with this bias, in transformers 3. All keys from
# a query's own position on share a value, so the bias only changes the
# attention of the t-th token to the first t tokens of the first passage.
_UNUSED = {
  r"decoder\..*EncDecAttention\.relative_attention_bias\.weight": (
    "a bias of old releases, which T5 does not have"
  )
}


class T5Weights(NamedTuple):
  """A T5 with its parameters, and a report of their sources."""

  config: T5Config
  params: Params
  lines: list[str]


def read_t5(directory: Path) -> T5Weights:
  """Reads a T5 from a directory, or from the prefix of a checkpoint.

  Raises:
    WeightsError: The files have another model, or are damaged.
  """
  file = JsonFile(directory / CONFIG, optional=True)
  file.get("model_type", ("t5", "mt5"), "t5")
  if (directory / t5x.TREE).is_file():
    tensors: Tensors = t5x.read_t5x(directory)
  elif not directory.is_dir() or [*directory.glob("*.index")]:
    # Imported late because it needs TensorFlow, from the extra `train`.
    from realm_jax.weights import mesh

    tensors = mesh.read_mesh(directory)
  else:
    tensors = _named_as_hugging_face(open_tensors(directory))
  config = _config(directory, tensors, file)
  shapes = jax.eval_shape(
    lambda key: flattened(T5(config).init_parameters(key)), jax.random.key(0)
  )
  parameters, lines = name_maps.read(
    tensors,
    table_of(config),
    {path: tuple(leaf.shape) for path, leaf in shapes.items()},
    system="torch",
    allowed=_UNUSED,
  )
  return T5Weights(config, nested(parameters), lines)


def export_t5(
  config: T5Config, params: Params, directory: epath.PathLike
) -> None:
  """Writes config.json and model.safetensors in Hugging Face's form."""
  names = {form: name for name, form in _FEED_FORWARD.items()}
  try:
    form = names[config.activation, config.gated]
  except KeyError as error:
    raise WeightsError(
      f"Hugging Face's T5 has no feed-forward layers with "
      f"activation={config.activation!r} and gated={config.gated}"
    ) from error
  arrays = {path: np.asarray(x) for path, x in flattened(params).items()}
  merged = lora.merged(arrays, config.lora)
  tensors = dict(name_maps.write(merged, table_of(config)).values())
  write_tensors(directory, tensors)
  write_json(
    epath.Path(directory) / CONFIG,
    {
      "architectures": ["T5ForConditionalGeneration"],
      "model_type": "t5",
      "torch_dtype": "float32",
      "vocab_size": config.vocab_size,
      "d_model": config.hidden_size,
      "d_kv": config.head_size,
      "d_ff": config.intermediate_size,
      "num_layers": config.num_layers,
      "num_decoder_layers": config.decoder_layers,
      "num_heads": config.num_heads,
      "relative_attention_num_buckets": config.num_buckets,
      **{key: getattr(config, field) for field, (key, _) in _KEYS.items()},
      "feed_forward_proj": form,
      "tie_word_embeddings": config.tied_head,
      "pad_token_id": 0,
    },
  )


def table_of(config: T5Config) -> list[Module]:
  """Returns the modules of a T5, with Hugging Face's names for them."""
  return name_maps.t5(
    config.num_layers,
    config.decoder_layers,
    gated=config.gated,
    tied_head=config.tied_head,
  )


def _named_as_hugging_face(tensors: Tensors) -> dict[str, np.ndarray]:
  """Returns the tensors of a reader, without prefixes for wrapped modules."""
  if any(name.startswith(_READER) for name in tensors):
    tensors = {
      name.removeprefix(_READER): tensor
      for name, tensor in tensors.items()
      if name.startswith(_READER)
    }
  return {
    re.sub(r"(^|\.)module\.", r"\1", name).replace(
      "encoder.encoder.", "encoder."
    ): tensor
    for name, tensor in tensors.items()
  }


def _config(directory: Path, tensors: Tensors, file: JsonFile) -> T5Config:
  """Returns the configuration, with sizes of tensors and from config.json."""
  numbers = {"encoder": 0, "decoder": 0}
  for block in filter(None, map(_BLOCK.fullmatch, tensors)):
    stack, number = block.groups()
    numbers[stack] = max(numbers[stack], 1 + int(number))
  first = "encoder.block.0.layer"
  gated = f"{first}.1.DenseReluDense.wi_0.weight" in tensors
  feed_forward = file.get(
    "feed_forward_proj",
    tuple(_FEED_FORWARD),
    "gated-gelu" if gated else "relu",
  )
  activation, gated = _FEED_FORWARD[feed_forward]
  try:
    words = tensors["shared.weight"]
    bias = tensors[f"{first}.0.SelfAttention.relative_attention_bias.weight"]
    inner, _ = tensors[f"{first}.0.SelfAttention.q.weight"].shape
    size, _ = tensors[f"{first}.1.DenseReluDense.wi{'_0' * gated}.weight"].shape
    (vocab_size, hidden_size), (buckets, heads) = words.shape, bias.shape
    config = T5Config(
      vocab_size,
      hidden_size,
      num_layers=numbers["encoder"],
      num_decoder_layers=numbers["decoder"],
      num_heads=heads,
      head_size=inner // heads,
      intermediate_size=size,
      num_buckets=buckets,
      activation=activation,
      gated=gated,
    )
  except (KeyError, ValueError) as error:
    names = ", ".join([*tensors][:3])
    raise WeightsError(
      f"{directory} has not the tensors of a T5 ({error}), but {names}, …; is "
      "it an encoder and decoder of T5, with its config.json?"
    ) from error
  head = tensors.get("lm_head.weight", words)
  # transformers ties them unless config.json says otherwise.
  is_tied = bool(file.entries) or np.array_equal(head, words)
  return dataclasses.replace(
    config,
    tied_head=file.get("tie_word_embeddings", bool, is_tied),
    **{
      field: file.get(key, kind, getattr(config, field))
      for field, (key, kind) in _KEYS.items()
    },
  )
