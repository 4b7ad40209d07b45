"""Tokenizes and embeds texts with Hugging Face's libraries.

    .venv-peers/bin/python -m harness.peers.sentence \
      {tokens,vectors,losses,pairs,blocks,encode} --model=MODEL --input=FILE \
      --output=FILE

- tokens: `--model` is a vocabulary, and the input is a JSON list of texts. For
  each of `BertTokenizerFast` (`fast`) and `BertTokenizer` (`slow`), the output
  has the concatenated `ids` of all texts without special tokens, and `offsets`;
  text i has `ids[offsets[i]:offsets[i + 1]]`.
- vectors: `--model` is a folder for sentence-transformers, and each text is a
  string, or a list of title and body, which the library tokenizes as a pair.
  The output has `vectors` [n, d] in the order of the texts, and the library's
  `token_ids` and `token_types` [n, l], padded with 0.
- losses: each text is a list of a query, a relevant passage and an irrelevant
  one. The output has the values of sentence-transformers' ranking losses, and
  the gradients of the parameters (`NAME/gradient/PARAMETER`).
- pairs: each text is a pair. The output has `scores` [n] of a cross-encoder
  with a random classifier above `--model`, which is written beside the output.
- blocks: `--model` is the sizes of a BERT as JSON. The input has `token_ids`
  [n, l], padded with 0. They are embedded in the usual way: in batches in the
  order of the corpus, each padded to its longest block, with the mean over
  tokens. The time without loading is printed as JSON; there is no output.
- encode: `--model` is a folder for sentence-transformers, and the input is a
  JSON list of texts. The library embeds them in its own way: sorted by length,
  in batches of 32, with parameters in --dtype. The time is printed as for
  blocks.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers import losses as sentence_losses
from transformers import (
  BertConfig,
  BertForSequenceClassification,
  BertModel,
  BertTokenizer,
  BertTokenizerFast,
)

from harness.peers.random_models import save_arrays

_BLOCKS_PER_BATCH = 32
# Additional sizes of vectors in the Matryoshka loss.
SMALLER_SIZES = (128, 32)


def tokens(vocab: str, texts: list[str]) -> dict[str, np.ndarray]:
  """Returns the ids of all texts."""
  arrays = {}
  tokenizers = {"fast": BertTokenizerFast, "slow": BertTokenizer}
  for name, tokenizer in tokenizers.items():
    # Without a limit, because each longer text would log a warning.
    tokenize = tokenizer(vocab_file=vocab, model_max_length=10**9)
    rows = tokenize(texts, add_special_tokens=False).input_ids
    arrays[f"{name}/ids"] = np.array([i for row in rows for i in row], np.int32)
    arrays[f"{name}/offsets"] = np.cumsum([0, *map(len, rows)])
  return arrays


def vectors(model_dir: str, texts: list[Any]) -> dict[str, np.ndarray]:
  """Embeds texts, which are all strings or all pairs."""
  model = SentenceTransformer(model_dir, device="cpu")
  texts = [text if isinstance(text, str) else tuple(text) for text in texts]
  inputs = model.tokenize(texts)
  token_ids = inputs["input_ids"].numpy()
  # Without types, BERT uses 0 for all tokens.
  types = inputs.get("token_type_ids")
  return {
    "vectors": np.asarray(model.encode(texts)),
    "token_ids": token_ids,
    "token_types": np.zeros_like(token_ids) if types is None else types.numpy(),
  }


def losses(model_dir: str, rows: list[list[str]]) -> dict[str, np.ndarray]:
  """Returns losses of queries with passages, and their gradients."""
  model = SentenceTransformer(model_dir, device="cpu").eval()
  negatives = sentence_losses.MultipleNegativesRankingLoss(model)
  sizes = [model.get_sentence_embedding_dimension(), *SMALLER_SIZES]
  named = {
    "ranking": negatives,
    "symmetric": sentence_losses.MultipleNegativesSymmetricRankingLoss(model),
    "cached": sentence_losses.CachedMultipleNegativesRankingLoss(
      model, mini_batch_size=2
    ),
    "matryoshka": sentence_losses.MatryoshkaLoss(model, negatives, sizes),
  }
  results = {}
  for name, loss in named.items():
    columns = [*zip(*rows, strict=True)]
    # The symmetric loss takes no passages other than the relevant ones.
    columns = columns[:2] if name == "symmetric" else columns
    model.zero_grad()
    value = loss([model.tokenize(list(texts)) for texts in columns], None)
    value.backward()
    results[f"{name}/loss"] = value.detach().numpy()
    for path, parameter in model[0].auto_model.named_parameters():
      if parameter.grad is not None:
        results[f"{name}/gradient/{path}"] = parameter.grad.numpy().copy()
  return results


def pair_scores(model_dir: str, pairs: list[list[str]], folder: Path) -> Any:
  """Writes a random cross-encoder, and returns its scores of pairs."""
  torch.manual_seed(0)
  classifier = BertForSequenceClassification.from_pretrained(
    model_dir, num_labels=1
  )
  classifier.save_pretrained(folder)
  words = BertTokenizerFast.from_pretrained(model_dir)
  words.save_pretrained(folder)
  model = CrossEncoder(str(folder), device="cpu")
  scores = model.predict(pairs, activation_fct=torch.nn.Identity())
  return {"scores": np.asarray(scores, np.float32)}


def block_seconds(sizes: str, token_ids: np.ndarray) -> float:
  """Returns the time in which a random BERT embeds all blocks."""
  torch.manual_seed(0)
  bert = BertModel(BertConfig(**json.loads(sizes))).eval()
  lengths = np.count_nonzero(token_ids, axis=1)

  def embed(rows: slice) -> np.ndarray:
    inputs = torch.from_numpy(token_ids[rows, : lengths[rows].max()])
    is_token = inputs != 0
    with torch.inference_mode():
      hidden = bert(inputs, attention_mask=is_token.long()).last_hidden_state
    weights = is_token[..., None].float()
    return ((hidden * weights).sum(1) / weights.sum(1)).numpy()

  batches = [
    slice(start, start + _BLOCKS_PER_BATCH)
    for start in range(0, len(token_ids), _BLOCKS_PER_BATCH)
  ]
  embed(batches[0])  # The first call allocates.
  start = time.perf_counter()
  for rows in batches:
    embed(rows)
  return time.perf_counter() - start


def encode_seconds(model_dir: str, texts: list[str], dtype: str) -> float:
  """Returns the time in which sentence-transformers embeds texts."""
  model = SentenceTransformer(model_dir, device="cpu")
  model = model.to(getattr(torch, dtype))

  def encode(texts: list[str]) -> None:
    # NumPy has no bfloat16.
    model.encode(texts, batch_size=_BLOCKS_PER_BATCH, convert_to_tensor=True)

  encode(texts[:_BLOCKS_PER_BATCH])  # The first call allocates.
  start = time.perf_counter()
  encode(texts)
  return time.perf_counter() - start


def main() -> None:
  """Reads the input and writes the output."""
  parser = argparse.ArgumentParser(description=__doc__)
  kinds = ["tokens", "vectors", "losses", "pairs", "blocks", "encode"]
  parser.add_argument("what", choices=kinds)
  parser.add_argument("--model", required=True)
  parser.add_argument("--input", type=Path, required=True)
  parser.add_argument("--output", type=Path)
  parser.add_argument("--dtype", default="float32")
  options = parser.parse_args()
  torch.set_num_threads(2)
  if options.what == "blocks":
    with np.load(options.input, allow_pickle=False) as arrays:
      seconds = block_seconds(
        options.model, arrays["token_ids"].astype(np.int64)
      )
    print(json.dumps({"seconds": seconds}))
    return
  texts = json.loads(options.input.read_text(encoding="utf-8"))
  if options.what == "encode":
    seconds = encode_seconds(options.model, texts, options.dtype)
    print(json.dumps({"seconds": seconds}))
    return
  if options.what == "pairs":
    folder = options.output.with_suffix("")
    save_arrays(options.output, pair_scores(options.model, texts, folder))
    return
  compute = {"tokens": tokens, "vectors": vectors, "losses": losses}[
    options.what
  ]
  save_arrays(options.output, compute(options.model, texts))


if __name__ == "__main__":
  main()
