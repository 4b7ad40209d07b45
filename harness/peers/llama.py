"""A tiny Llama with random weights, and llama.cpp's likelihoods of texts.

    .venv-llama/bin/python -m harness.peers.llama MODEL.gguf PAIRS.json

This writes the model, and prints a line of JSON with the log-likelihood of each
target after its prompt. It is computed in float64 from the logits in this
process. `python -m llama_cpp.server` can serve the same file.
"""

import json
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

_HIDDEN, _HEADS, _INNER, _CONTEXT = 32, 2, 64, 512
_SPACE = "\u2581"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?:.,"
_WORDS = ("th", "the", "in", "an", "er", f"{_SPACE}t", f"{_SPACE}the")


def write_model(path: Path) -> None:
  """Writes a one-layer model, with bytes for characters without a token."""
  texts = [_SPACE, *_LETTERS, *_WORDS]
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
  kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(texts)
  scores = [0.0] * len(tokens) + [float(len(text)) for text in texts]
  tokens += texts
  file = gguf.GGUFWriter(path, "llama")
  file.add_context_length(_CONTEXT)
  file.add_embedding_length(_HIDDEN)
  file.add_block_count(1)
  file.add_feed_forward_length(_INNER)
  file.add_head_count(_HEADS)
  file.add_head_count_kv(_HEADS)
  file.add_layer_norm_rms_eps(1e-5)
  file.add_rope_dimension_count(_HIDDEN // _HEADS)
  file.add_vocab_size(len(tokens))
  file.add_tokenizer_model("llama")
  file.add_token_list([token.encode() for token in tokens])
  file.add_token_scores(scores)
  file.add_token_types(kinds)
  file.add_unk_token_id(0)
  file.add_bos_token_id(1)
  file.add_eos_token_id(2)
  file.add_add_bos_token(True)
  rng = np.random.default_rng(0)
  shapes = {
    "token_embd": (len(tokens), _HIDDEN),
    "output": (len(tokens), _HIDDEN),
    **{f"blk.0.attn_{n}": (_HIDDEN, _HIDDEN) for n in ("q", "k", "v")},
    "blk.0.attn_output": (_HIDDEN, _HIDDEN),
    "blk.0.ffn_gate": (_INNER, _HIDDEN),
    "blk.0.ffn_up": (_INNER, _HIDDEN),
    "blk.0.ffn_down": (_HIDDEN, _INNER),
  }
  for name, shape in shapes.items():
    values = 0.3 * rng.normal(size=shape)
    file.add_tensor(f"{name}.weight", values.astype(np.float32))
  for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    file.add_tensor(f"{name}.weight", np.ones(_HIDDEN, np.float32))
  file.write_header_to_file()
  file.write_kv_data_to_file()
  file.write_tensors_to_file()
  file.close()


def main(model_file: str, pairs_file: str) -> None:
  """Writes the model, and prints the log-likelihoods."""
  write_model(Path(model_file))
  model = llama_cpp.Llama(
    model_file, logits_all=True, n_ctx=_CONTEXT, verbose=False
  )
  totals = []
  for prompt, target in json.loads(Path(pairs_file).read_text("utf-8")):
    before = len(model.tokenize(prompt.encode()))
    tokens = model.tokenize((prompt + target).encode())
    model.reset()
    model.eval(tokens)
    logits = np.asarray(model.scores[: len(tokens)], np.float64)
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    places = np.arange(before, len(tokens))
    log_probs = logits[places - 1, np.array(tokens)[places]] - total[places - 1]
    totals.append(log_probs.sum())
  print(json.dumps(totals))


if __name__ == "__main__":
  main(*sys.argv[1:])
