"""Measures a training step and `generate` for Fusion-in-Decoder in torch.

    .venv-peers/bin/python -m harness.peers.reader make --folder=F --sizes=JSON
    .venv-peers/bin/python -m harness.peers.reader tuned --folder=F --steps=3

`make` writes a T5 with random weights, and questions with passages (`inputs`
[b k l]) and texts (`targets` [b t]) of several lengths. Other arguments print
one line of JSON. There are two versions of the step, with the same modules:

- published: like Fusion-in-Decoder's code, with all passages padded to one
  length, and AdamW.
- tuned: like a good engineer's code. Passages are encoded in groups of similar
  lengths, the decoder attends to them without padding in between, and AdamW is
  fused.

Both use Hugging Face's attention, because torch's kernels for CPUs do not
support dropout. `generate` writes texts from the same passages, tuned in the
same way.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from harness.peer_processes import peak_memory

_INPUTS = "inputs.npz"
_END_ID, _FIRST_WORD, _NOT_SCORED = 1, 3, -100
_NUM_GROUPS = 4


def make(folder: Path, sizes: dict[str, int]) -> None:
  """Writes a model and its inputs."""
  torch.manual_seed(0)
  config = T5Config(
    vocab_size=sizes["vocab"],
    d_model=sizes["hidden"],
    d_kv=sizes["head_size"],
    d_ff=sizes["inner"],
    num_layers=sizes["layers"],
    num_heads=sizes["heads"],
    decoder_start_token_id=0,
  )
  T5ForConditionalGeneration(config).save_pretrained(folder)
  rng = np.random.default_rng(0)

  def texts(*shape: int) -> np.ndarray:
    words = rng.integers(_FIRST_WORD, config.vocab_size, shape)
    lengths = rng.integers(shape[-1] // 2, shape[-1] + 1, shape[:-1])[..., None]
    place = np.arange(shape[-1])
    return np.where(
      place < lengths - 1, words, (place == lengths - 1) * _END_ID
    )

  inputs = texts(sizes["batch"], sizes["candidates"], sizes["length"])
  targets = texts(sizes["batch"], sizes["target"])
  np.savez(folder / _INPUTS, inputs=inputs, targets=targets)


def _remember(
  model: T5ForConditionalGeneration, inputs: torch.Tensor, *, tuned: bool
) -> dict[str, Any]:
  """Encodes passages, and concatenates the passages of each question."""
  batch, number, length = inputs.shape
  flat = inputs.flatten(0, 1)
  if not tuned:
    hidden = model.encoder(flat, flat != 0).last_hidden_state
    memory = hidden.reshape(batch, number * length, -1)
    return {
      "encoder_outputs": BaseModelOutput(memory),
      "attention_mask": (inputs != 0).flatten(1),
    }
  lengths = (flat != 0).sum(1)
  encoded: list[Any] = [None] * len(flat)
  for group in lengths.argsort().chunk(_NUM_GROUPS):
    padded = flat[group, : lengths[group].max()]
    hidden = model.encoder(padded, padded != 0).last_hidden_state
    for place, row in zip(group.tolist(), hidden, strict=True):
      encoded[place] = row[: lengths[place]]
  joined = [
    torch.cat(encoded[start : start + number])
    for start in range(0, len(flat), number)
  ]
  memory = torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)
  sizes = torch.tensor([len(one) for one in joined])
  is_token = torch.arange(memory.shape[1]) < sizes[:, None]
  return {
    "encoder_outputs": BaseModelOutput(memory),
    "attention_mask": is_token,
  }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
  """Returns times, peak memory, and the loss or the texts."""
  model = T5ForConditionalGeneration.from_pretrained(options.folder)
  with np.load(options.folder / _INPUTS) as arrays:
    inputs, targets = (torch.from_numpy(arrays[n]) for n in arrays.files)
  seconds, tuned = [], name != "published"
  context = torch.autocast("cpu", torch.bfloat16, options.dtype == "bfloat16")
  if name == "generate":
    for _ in range(options.steps + 1):
      start = time.perf_counter()
      with context, torch.no_grad():
        written = model.eval().generate(
          **_remember(model, inputs, tuned=True),
          max_new_tokens=targets.shape[1],
          num_beams=options.beams,
        )
      seconds.append(time.perf_counter() - start)
    result: dict[str, Any] = {"texts": written[:, 1:].tolist()}
  else:
    labels = targets.masked_fill(targets == 0, _NOT_SCORED)

    def loss() -> torch.Tensor:
      memory = _remember(model, inputs, tuned=tuned)
      return model(**memory, labels=labels).loss

    model.eval()
    with torch.no_grad(), context:
      result = {"loss": float(loss())}
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned)
    for _ in range(options.steps + 1):
      start = time.perf_counter()
      optimizer.zero_grad()
      with context:
        lost = loss()
      lost.backward()
      optimizer.step()
      seconds.append(time.perf_counter() - start)
  memory = peak_memory() / 1e9
  return {**result, "seconds": seconds[1:], "peak_memory_gb": memory}


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__)
  names = ["make", "published", "tuned", "generate"]
  parser.add_argument("name", choices=names)
  parser.add_argument("--folder", type=Path, required=True)
  parser.add_argument("--sizes")
  parser.add_argument("--steps", type=int, default=3)
  parser.add_argument("--beams", type=int, default=1)
  parser.add_argument("--dtype", default="float32")
  options = parser.parse_args()
  if options.name == "make":
    make(options.folder, json.loads(options.sizes))
  else:
    print(json.dumps(measure(options.name, options)))


if __name__ == "__main__":
  main()
