"""Tiny directories of transformers' REALM classes."""

import numpy as np

from tests.conversion.hugging_face import bert_files as hf_bert_files

HIDDEN, PROJECTED, SPAN = hf_bert_files.HIDDEN, 4, 6
SIZES = {
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


def _draw(shapes, seed):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(0, 0.4, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def _head(prefix):
  vocab = len(hf_bert_files.pieces())
  return {
    f"{prefix}cls.predictions.transform.dense.weight": (HIDDEN, HIDDEN),
    f"{prefix}cls.predictions.transform.dense.bias": (HIDDEN,),
    f"{prefix}cls.predictions.transform.LayerNorm.weight": (HIDDEN,),
    f"{prefix}cls.predictions.transform.LayerNorm.bias": (HIDDEN,),
    f"{prefix}cls.predictions.bias": (vocab,),
  }


def _decoder(prefix):
  return {
    f"{prefix}cls.predictions.decoder.weight": (
      len(hf_bert_files.pieces()),
      HIDDEN,
    )
  }


def embedder(prefix="", seed=0):
  """A RealmEmbedder's tensors, the head that it does not use among them."""
  shapes = {
    f"{prefix}cls.dense.weight": (PROJECTED, HIDDEN),
    f"{prefix}cls.dense.bias": (PROJECTED,),
    f"{prefix}cls.LayerNorm.weight": (PROJECTED,),
    f"{prefix}cls.LayerNorm.bias": (PROJECTED,),
  } | _head(prefix)
  bert = hf_bert_files.tensors(prefix=f"{prefix}realm.", seed=seed)
  return bert | _draw(shapes | _decoder(prefix), seed + 1)


def encoder():
  bert = hf_bert_files.tensors(prefix="realm.")
  return bert | _draw(_head(""), 7)


def reader(prefix=""):
  """A RealmReader's tensors; its decoder is its own, and unused."""
  shapes = {
    f"{prefix}qa_outputs.dense_intermediate.weight": (2 * SPAN, HIDDEN),
    f"{prefix}qa_outputs.dense_intermediate.bias": (2 * SPAN,),
    f"{prefix}qa_outputs.layer_normalization.weight": (SPAN,),
    f"{prefix}qa_outputs.layer_normalization.bias": (SPAN,),
    f"{prefix}qa_outputs.dense_output.weight": (1, SPAN),
    f"{prefix}qa_outputs.dense_output.bias": (1,),
  } | _head(prefix)
  bert = hf_bert_files.tensors(prefix=f"{prefix}realm.", seed=3)
  return bert | _draw(shapes | _decoder(prefix), 4)


def write(directory, weights, architecture, **changes):
  config = {**SIZES, "architectures": [architecture], **changes}
  return str(hf_bert_files.write(directory, weights, **config))
