"""Makes `tests/golden/hf_bert`: tiny BERTs and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_bert

Each model is a folder written by `save_pretrained`. `expected.npz` in it has
the input tokens and the outputs.

| folder | parameters |
| --- | --- |
| `with_pooler` | encoder and pooler, without a prefix |
| `without_pooler` | the encoder alone |
| `masked_lm` | encoder, prefixed `bert.`, and masked-LM head |
"""

from pathlib import Path

import torch
from transformers import (
  BertConfig,
  BertForMaskedLM,
  BertModel,
  BertTokenizerFast,
)

from benchmarks.peers.random_models import (
  EXPECTED,
  RandomInputs,
  as_inputs,
  randomize,
  save_arrays,
)
from tests.golden.vocabulary import replaced, write_vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_bert"
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}
_QUERY_LENGTH, _BLOCK_LENGTH = 12, 30
_COUNT = 4
# Positions in the joint input of each query and the body of its block.
_POSITIONS = [1, 3]


def make_all(output_dir: Path, vocab: Path) -> None:
  """Makes all models, with the pieces of a vocabulary file."""
  pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
  inputs = RandomInputs(pieces, seed=0)
  tokenizer = BertTokenizerFast(vocab_file=str(vocab))
  config = BertConfig(vocab_size=len(pieces), **_MODEL)
  torch.manual_seed(0)
  queries = [inputs.query(_QUERY_LENGTH) for _ in range(_COUNT)]
  blocks = [inputs.block(_BLOCK_LENGTH) for _ in range(_COUNT)]
  query = as_inputs(inputs, queries, _QUERY_LENGTH)
  block = as_inputs(inputs, blocks, _BLOCK_LENGTH)
  length = _QUERY_LENGTH + _BLOCK_LENGTH
  pairs = zip(queries, blocks, strict=True)
  joint = as_inputs(inputs, [inputs.joint(*p, length) for p in pairs], length)
  for name, network in (
    ("with_pooler", BertModel(config)),
    ("without_pooler", BertModel(config, add_pooling_layer=False)),
    ("masked_lm", BertForMaskedLM(config)),
  ):
    randomize(network)
    network.save_pretrained(output_dir / name)
    tokenizer.save_pretrained(output_dir / name)
    arrays = {"query": query["input_ids"], "block": block["input_ids"]}
    encoder = network.bert if name == "masked_lm" else network
    with torch.no_grad():
      for side, given in (("query", query), ("block", block)):
        output = encoder(**given)
        arrays[f"{side}_hidden"] = output.last_hidden_state
        if output.pooler_output is not None:
          arrays[f"{side}_pooled"] = output.pooler_output
      if name == "masked_lm":
        logits = network(**joint).logits
        arrays["mask_positions"] = _POSITIONS
        arrays["joint_logits"] = logits[:, _POSITIONS]
    save_arrays(output_dir / name / EXPECTED, arrays)


def main() -> None:
  """Replaces the folder."""
  with replaced(OUTPUT_DIR) as folder:
    make_all(OUTPUT_DIR, write_vocabulary(folder))


if __name__ == "__main__":
  main()
