"""Tiny models in directories as `save_pretrained` writes them.

The names of the tensors are written out here once more, so that tests do not
rest on our tables.
"""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from tests import tiny_world

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 8, 2, 2, 12, 64
PROJECTED, SPAN = 4, 6
_HEAD = {
  "cls.predictions.transform.dense.weight": (HIDDEN, HIDDEN),
  "cls.predictions.transform.dense.bias": (HIDDEN,),
  "cls.predictions.transform.LayerNorm.weight": (HIDDEN,),
  "cls.predictions.transform.LayerNorm.bias": (HIDDEN,),
  "cls.predictions.bias": (len(tiny_world.pieces()),),
}
_DECODER = {
  "cls.predictions.decoder.weight": (len(tiny_world.pieces()), HIDDEN)
}
_PROJECTION = {
  "cls.dense.weight": (PROJECTED, HIDDEN),
  "cls.dense.bias": (PROJECTED,),
  "cls.LayerNorm.weight": (PROJECTED,),
  "cls.LayerNorm.bias": (PROJECTED,),
}
_SPAN_HEAD = {
  "qa_outputs.dense_intermediate.weight": (2 * SPAN, HIDDEN),
  "qa_outputs.dense_intermediate.bias": (2 * SPAN,),
  "qa_outputs.layer_normalization.weight": (SPAN,),
  "qa_outputs.layer_normalization.bias": (SPAN,),
  "qa_outputs.dense_output.weight": (1, SPAN),
  "qa_outputs.dense_output.bias": (1,),
}
_REALM = {
  "retriever_proj_size": PROJECTED,
  "span_hidden_size": SPAN,
  "max_span_width": 3,
  "reader_layer_norm_eps": 1e-3,
  "reader_seq_len": 48,
  "hidden_act": "gelu_new",
  "model_type": "realm",
  # As RealmConfig has it; what padding is, its tokenizer says.
  "pad_token_id": 1,
}
Tensors = dict[str, np.ndarray]


def pieces() -> list[str]:
  return tiny_world.pieces()


def _draw(shapes, prefix: str, seed: int) -> Tensors:
  rng = np.random.default_rng(seed)
  return {
    prefix + name: rng.normal(0, 0.4, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def tensors(
  *, prefix: str = "", pooler: bool = True, head: bool = False, seed: int = 0
) -> Tensors:
  """Random tensors of BERT by their names in transformers."""
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
  made = _draw(shapes, prefix, seed)
  return made | _draw(_HEAD, "", seed + 1) if head else made


def embedder(prefix: str = "", seed: int = 0) -> Tensors:
  """A RealmEmbedder's tensors, the head that it does not use among them."""
  around = _draw(_PROJECTION | _HEAD | _DECODER, prefix, seed + 1)
  return tensors(prefix=f"{prefix}realm.", seed=seed) | around


def encoder() -> Tensors:
  """A RealmKnowledgeAugEncoder's tensors."""
  return tensors(prefix="realm.") | _draw(_HEAD, "", 7)


def reader(prefix: str = "") -> Tensors:
  """A RealmReader's tensors; its decoder is its own, and unused."""
  around = _draw(_SPAN_HEAD | _HEAD | _DECODER, prefix, 4)
  return tensors(prefix=f"{prefix}realm.", seed=3) | around


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
  weights: Tensors,
  *,
  vocabulary: list[str] | None = None,
  **changes,
) -> Path:
  """Writes config.json (with changes), model.safetensors and vocab.txt."""
  write_json(directory / "config.json", config(**changes))
  safetensors.numpy.save_file(weights, directory / "model.safetensors")
  lines = "\n".join(vocabulary or pieces()) + "\n"
  (directory / "vocab.txt").write_text(lines, encoding="utf-8")
  return directory


def write_realm(
  directory: Path, weights: Tensors, architecture: str, **changes
) -> Path:
  changes = {**_REALM, "architectures": [architecture], **changes}
  return write(directory, weights, **changes)


def write_sentence_modules(
  directory: Path, *, mode: str = "mean_tokens", normalize: bool = True
) -> None:
  """What sentence-transformers adds."""
  kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
  kinds += [("Normalize", "2_Normalize")] if normalize else []
  write_json(
    directory / "modules.json",
    [
      {"idx": i, "name": str(i), "path": path, "type": f"s_t.models.{kind}"}
      for i, (kind, path) in enumerate(kinds)
    ],
  )
  modes = ("cls_token", "mean_tokens", "max_tokens")
  write_json(
    directory / "1_Pooling" / "config.json",
    {f"pooling_mode_{name}": name == mode for name in modes},
  )
