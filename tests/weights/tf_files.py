"""Tiny checkpoints as Google's TensorFlow 1 code wrote them.

The names of the variables are written out here once more, so that tests do not
rest on our tables.
"""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests import tiny_world

# Heads of 64 dimensions, as in every released BERT.
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 128, 2, 2, 12, 64
PROJECTION, SPAN = 8, 6
# The names that the released modules have, by how often each was wrapped.
REALM = {"scope": "module/module/", "norm": "LayerNorm"}
ICT = {"scope": "", "norm": "layer_normalization"}

Variables = dict[str, np.ndarray]


def bert(scope: str = "", *, layers: int = LAYERS, seed: int = 0) -> Variables:
  """Returns `bert/…` and `cls/predictions/…` below a scope."""
  words = len(tiny_world.pieces())
  shapes: dict[str, tuple[int, ...]] = {
    "bert/embeddings/word_embeddings": (words, HIDDEN),
    "bert/embeddings/position_embeddings": (POSITIONS, HIDDEN),
    "bert/embeddings/token_type_embeddings": (2, HIDDEN),
    **_norm("bert/embeddings/LayerNorm", HIDDEN),
    **_dense("bert/pooler/dense", HIDDEN, HIDDEN),
    **_dense("cls/predictions/transform/dense", HIDDEN, HIDDEN),
    **_norm("cls/predictions/transform/LayerNorm", HIDDEN),
    "cls/predictions/output_bias": (words,),
  }
  for i in range(layers):
    layer = f"bert/encoder/layer_{i}"
    for name in ("self/query", "self/key", "self/value", "output/dense"):
      shapes |= _dense(f"{layer}/attention/{name}", HIDDEN, HIDDEN)
    shapes |= _dense(f"{layer}/intermediate/dense", HIDDEN, INNER)
    shapes |= _dense(f"{layer}/output/dense", INNER, HIDDEN)
    shapes |= _norm(f"{layer}/attention/output/LayerNorm", HIDDEN)
    shapes |= _norm(f"{layer}/output/LayerNorm", HIDDEN)
  return _random({scope + n: shape for n, shape in shapes.items()}, seed)


def embedder(scope: str, norm: str = "LayerNorm", seed: int = 0) -> Variables:
  """BERT in a module of its own, and the projection around it."""
  around = {
    **_dense(f"{scope}dense", HIDDEN, PROJECTION),
    **_norm(f"{scope}{norm}", PROJECTION),
  }
  return bert(f"{scope}module/", seed=seed) | _random(around, seed + 100)


def with_adam(variables: Variables) -> Variables:
  """The same with the moments that training leaves beside each variable."""
  moments = {
    f"{name}/adam_{moment}": np.zeros_like(value)
    for name, value in variables.items()
    for moment in "mv"
  }
  return {**variables, **moments, "global_step": np.int64(1000)}


def _dense(name: str, size: int, width: int) -> dict[str, tuple[int, ...]]:
  return {f"{name}/kernel": (size, width), f"{name}/bias": (width,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
  return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> Variables:
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(0, 0.2, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


# --- Files --------------------------------------------------------------------


def save(prefix: Path, variables: Variables) -> Path:
  """Writes a checkpoint as TensorFlow 1's Saver does."""
  prefix.parent.mkdir(parents=True, exist_ok=True)
  with tf.Graph().as_default():
    graph_variables = [
      tf.compat.v1.get_variable(name, initializer=value)
      for name, value in variables.items()
    ]
    with tf.compat.v1.Session() as session:
      session.run(tf.compat.v1.global_variables_initializer())
      tf.compat.v1.train.Saver(graph_variables).save(
        session, str(prefix), write_state=False
      )
  return prefix


def write_pieces(path: Path) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = "\n".join(tiny_world.pieces()) + "\n"
  path.write_text(lines, encoding="utf-8")


def config(**changes) -> str:
  return json.dumps(
    {
      "hidden_act": "gelu",
      "hidden_dropout_prob": 0.1,
      "hidden_size": HIDDEN,
      "initializer_range": 0.02,
      "intermediate_size": INNER,
      "max_position_embeddings": POSITIONS,
      "num_attention_heads": HEADS,
      "num_hidden_layers": LAYERS,
      "type_vocab_size": 2,
      **changes,
    }
  )


def write_bert(directory: Path, variables: Variables, **changes) -> None:
  """A directory as Google released BERT; `changes` are of bert_config.json."""
  save(directory / "bert_model.ckpt", variables)
  write_pieces(directory / "vocab.txt")
  (directory / "bert_config.json").write_text(config(**changes))


def write_module(directory: Path, variables: Variables) -> Variables:
  """A TF-Hub module: its variables and its vocabulary."""
  save(directory / "variables" / "variables", variables)
  write_pieces(directory / "assets" / "vocab.txt")
  return variables


def write_records(path: Path, records: list[bytes]) -> Path:
  path.parent.mkdir(parents=True, exist_ok=True)
  compression = "GZIP" if path.suffix == ".gz" else ""
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for record in records:
      writer.write(record)
  return path


def write_fine_tuned(directory: Path, scope: str) -> Variables:
  """As open QA leaves a model; its vocabulary is with its modules."""
  span_head = {
    **_dense("reader/dense", HIDDEN, 2 * SPAN),
    **_dense("reader/dense_1", SPAN, 1),
    **_norm("reader/layer_normalization", SPAN),
  }
  variables = {
    **embedder(scope),
    **bert("reader/module/", seed=1),
    **_random(span_head, 200),
  }
  folder = directory / "export" / "best_default" / "checkpoint"
  save(folder / "model.ckpt-1000", with_adam(variables))
  params = {"reader_seq_len": 40, "max_span_width": 4}
  (directory / "params.json").write_text(json.dumps(params))
  write_pieces(directory / "vocab.txt")
  return variables


def write_release(directory: Path) -> tuple[np.ndarray, list[bytes]]:
  """A retriever with the vectors of 30 blocks, their texts and titles."""
  write_module(directory / "embedder", embedder(**REALM))
  rng = np.random.default_rng(4)
  vectors = rng.standard_normal((30, PROJECTION), np.float32)
  encoded = directory / "embedder" / "encoded" / "encoded.ckpt"
  save(encoded, {"block_emb": vectors})
  texts = [f"the bridge of velt {i}.".encode() for i in range(30)]
  write_records(directory / "blocks.tfr", texts)
  write_records(directory / "titles.tfr", [b"Velt"] * 30)
  return vectors, texts
