"""Tiny BERT directories as `save_pretrained` writes them, and their meaning.

The names of the tensors are written out here once more, and what they compute
is worked out from them in numpy, so that tests do not rest on our tables.
"""

import json
import math
from pathlib import Path

import numpy as np
import safetensors.numpy

from tests import tiny_world

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 8, 2, 2, 12, 64
CLS, SEP = 2, 3


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


def last_hidden(
  weights: dict[str, np.ndarray],
  token_ids: list[int],
  token_types: list[int],
  *,
  prefix: str = "",
) -> np.ndarray:
  """BertModel's last hidden state of one text, in float64."""
  w = {
    name.removeprefix(prefix): array.astype(np.float64)
    for name, array in weights.items()
  }

  def linear(x, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

  def norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]

  x = w["embeddings.word_embeddings.weight"][token_ids]
  x = x + w["embeddings.token_type_embeddings.weight"][token_types]
  x = x + w["embeddings.position_embeddings.weight"][: len(token_ids)]
  x = norm(x, "embeddings.LayerNorm")
  size = HIDDEN // HEADS
  erf = np.vectorize(math.erf)
  for i in range(LAYERS):
    layer = f"encoder.layer.{i}"
    q, k, v = (
      linear(x, f"{layer}.attention.self.{name}").reshape(-1, HEADS, size)
      for name in ("query", "key", "value")
    )
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    context = np.einsum("hqk,khd->qhd", scores, v).reshape(-1, HIDDEN)
    x = norm(
      x + linear(context, f"{layer}.attention.output.dense"),
      f"{layer}.attention.output.LayerNorm",
    )
    inner = linear(x, f"{layer}.intermediate.dense")
    inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
    x = norm(
      x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
    )
  return x
