"""Tiny BERT directories as `save_pretrained` writes them, and their meaning.

The names of the tensors are written out here once more, and what they compute
is worked out from them in numpy, so that tests do not rest on our tables.
"""

import functools
import json
import math
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from tests import tiny_world
from tests.conversion import imported, reference_bert
from tests.conversion.imported import import_weights

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 8, 2, 2, 12, 64
# `[CLS] … [SEP] … [SEP]`, and a shorter one that is padded.
LONG = [2, 9, 11, 3, 7, 8, 21, 3]
SHORT = [2, 14, 3]
BATCH = np.array([LONG, SHORT + [0] * 5], np.int32)


def pieces() -> list[str]:
  return tiny_world.pieces()


def tensors(
  *, prefix: str = "", pooler: bool = True, head: bool = False, seed: int = 0
) -> dict[str, np.ndarray]:
  """Random tensors by their names in transformers."""
  rng = np.random.default_rng(seed)
  shapes: dict[str, tuple[int, ...]] = {
    "embeddings.word_embeddings.weight": (len(pieces()), HIDDEN),
    "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
    "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    "embeddings.LayerNorm.weight": (HIDDEN,),
    "embeddings.LayerNorm.bias": (HIDDEN,),
  }
  for i in range(LAYERS):
    layer = f"encoder.layer.{i}"
    for name in ("self.query", "self.key", "self.value", "output.dense"):
      shapes[f"{layer}.attention.{name}.weight"] = (HIDDEN, HIDDEN)
      shapes[f"{layer}.attention.{name}.bias"] = (HIDDEN,)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
      shapes[f"{layer}.{name}.weight"] = (HIDDEN,)
      shapes[f"{layer}.{name}.bias"] = (HIDDEN,)
    shapes[f"{layer}.intermediate.dense.weight"] = (INNER, HIDDEN)
    shapes[f"{layer}.intermediate.dense.bias"] = (INNER,)
    shapes[f"{layer}.output.dense.weight"] = (HIDDEN, INNER)
    shapes[f"{layer}.output.dense.bias"] = (HIDDEN,)
  if pooler:
    shapes["pooler.dense.weight"] = (HIDDEN, HIDDEN)
    shapes["pooler.dense.bias"] = (HIDDEN,)
  shapes = {prefix + name: shape for name, shape in shapes.items()}
  if head:
    shapes["cls.predictions.transform.dense.weight"] = (HIDDEN, HIDDEN)
    shapes["cls.predictions.transform.dense.bias"] = (HIDDEN,)
    shapes["cls.predictions.transform.LayerNorm.weight"] = (HIDDEN,)
    shapes["cls.predictions.transform.LayerNorm.bias"] = (HIDDEN,)
    shapes["cls.predictions.bias"] = (len(pieces()),)
  return {
    name: rng.normal(0, 0.4, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def config(**changes) -> dict:
  return {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "vocab_size": len(pieces()),
    **changes,
  }


def write_json(path: Path, content) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(content), encoding="utf-8")


def write(
  directory: Path,
  weights: dict[str, np.ndarray],
  *,
  vocabulary: list[str] | None = None,
  **changes,
) -> Path:
  """Writes config.json (with changes), model.safetensors and vocab.txt."""
  directory.mkdir(parents=True, exist_ok=True)
  write_json(directory / "config.json", config(**changes))
  safetensors.numpy.save_file(weights, directory / "model.safetensors")
  lines = "\n".join(vocabulary or pieces()) + "\n"
  (directory / "vocab.txt").write_text(lines, encoding="utf-8")
  return directory


def write_sentence_modules(
  directory: Path,
  *,
  mode: str = "mean_tokens",
  normalize: bool = True,
  folder: str = "",
) -> None:
  """What sentence-transformers adds; `folder` is where BERT is."""
  kinds = [("Transformer", folder), ("Pooling", "1_Pooling")]
  kinds += [("Normalize", "2_Normalize")] if normalize else []
  write_json(
    directory / "modules.json",
    [
      {"idx": i, "name": str(i), "path": path, "type": f"s_t.models.{kind}"}
      for i, (kind, path) in enumerate(kinds)
    ],
  )
  write_json(
    directory / "1_Pooling" / "config.json",
    {
      "word_embedding_dimension": HIDDEN,
      **{
        f"pooling_mode_{name}": name == mode
        for name in ("cls_token", "mean_tokens", "max_tokens")
      },
    },
  )


# ---- What they compute -------------------------------------------------------


def last_hidden(
  weights: dict[str, np.ndarray],
  tokens: list[int],
  types: list[int] | None = None,
  *,
  prefix: str = "",
) -> np.ndarray:
  """BertModel's last hidden states of one text."""
  named = {
    name.removeprefix(prefix): array
    for name, array in weights.items()
    if name.startswith((f"{prefix}embeddings.", f"{prefix}encoder."))
  }
  return reference_bert.last_hidden(
    dict(_in_googles_names(name, array) for name, array in named.items()),
    tokens,
    types=types,
    heads=HEADS,
    gelu=_gelu,
  )


def _in_googles_names(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
  name = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/")
  for ours, theirs in (
    ("_embeddings/weight", "_embeddings"),
    ("LayerNorm/weight", "LayerNorm/gamma"),
    ("LayerNorm/bias", "LayerNorm/beta"),
  ):
    if name.endswith(ours):
      return name.removesuffix(ours) + theirs, array
  if name.endswith("/weight"):
    return name.removesuffix("weight") + "kernel", array.T
  return name, array


def _gelu(x: np.ndarray) -> np.ndarray:
  return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def hidden(
  weights: dict[str, np.ndarray], prefix: str = ""
) -> list[np.ndarray]:
  """The last hidden states of LONG and of SHORT."""
  return [last_hidden(weights, row, prefix=prefix) for row in (LONG, SHORT)]


# ---- What is made of them ----------------------------------------------------


def import_bert(directory: Path, output_dir: Path, **options) -> str:
  """Imports; without options, what REALM's towers read, and no reader."""
  usual = {"title_separator": True, "token_types": True, "parts": ["retriever"]}
  options = usual | options
  return import_weights("hf_bert", str(directory), output_dir, **options)


def vectors(
  model_dir: Path, method: str = "embed_queries", batch: np.ndarray = BATCH
) -> np.ndarray:
  """What an imported retriever makes of LONG and SHORT, or of a batch."""
  model = imported.load(model_dir)
  embed = jax.jit(functools.partial(model.retriever.apply, method=method))
  return np.asarray(embed({"params": model.params["retriever"]}, batch))
