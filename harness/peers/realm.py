"""Creates random Hugging Face REALM models, and the values that they compute.

    .venv-peers/bin/python -m harness.peers.realm \
      --output_dir=out/hf_realm --vocab=vocab.txt

Each model is a folder written by `save_pretrained`, in which `expected.npz` has
the inputs and the outputs. The name of a gradient is `gradient/` and the
parameter's name. Everything is drawn with one seed. A span is identified by its
block (in the order of retrieval), its first token in the block's body, and its
width minus one; `span_logits` [b k l w] has NaN for invalid spans.

| folder | contents of `expected.npz` |
| --- | --- |
| `embedder`, `reader` | (none: only the weights) |
| `two_towers` | relevance by a scorer with a query tower of its own |
| `scorer`, `encoder` | relevance, masked-LM logits, REALM's loss, gradients |
| `open_qa` | relevance of stored vectors, span scores, losses, gradients |
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import RealmConfig, RealmRetriever, RealmTokenizerFast
from transformers.models.realm.modeling_realm import (
  RealmEmbedder,
  RealmForOpenQA,
  RealmKnowledgeAugEncoder,
  RealmPreTrainedModel,
  RealmReader,
  RealmScorer,
)

from harness.peers import step
from harness.peers.random_models import (
  EXPECTED,
  RandomInputs,
  Tokens,
  as_array,
  as_inputs,
  gradients,
  padded,
  randomize,
  save_arrays,
)

_NOT_SCORED = -100  # A label that torch's cross entropy ignores.
# Parameters that a model may share under a second name. transformers only
# writes them with these regular expressions.
_SHARED = (r"query_embedder\..*", r".*cls\.predictions\.decoder\.bias")


# Arguments of RealmConfig, whose defaults are BERT-base's; then the number of
# queries in a batch, their length with [CLS] and [SEP], the length of blocks,
# and the number of masks that are scored in a query.
SIZES: dict[str, tuple[dict[str, int], tuple[int, int, int, int]]] = {
  "tiny": (
    {
      "hidden_size": 24,
      "num_hidden_layers": 2,
      "num_attention_heads": 2,
      "intermediate_size": 48,
      "max_position_embeddings": 64,
      "retriever_proj_size": 16,
      "span_hidden_size": 16,
      "reader_beam_size": 4,
      "searcher_beam_size": 10,
      "reader_seq_len": 40,
      "num_candidates": 4,
      "num_block_records": 24,
    },
    (4, 14, 36, 3),
  ),
  "base": (
    {
      "reader_beam_size": 5,
      "searcher_beam_size": 20,
      "reader_seq_len": 120,
      "num_candidates": 4,
      "num_block_records": 60,
    },
    (3, 40, 96, 5),
  ),
}


class RandomRealm:
  """Sizes, vocabulary, inputs and folders that the models share.

  Args:
    output_dir: Folder for the models' folders.
    vocab: Vocabulary file, one piece per line.
    size: One of `SIZES`.
  """

  def __init__(self, output_dir: Path, vocab: Path, size: str):
    pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
    self.inputs = RandomInputs(pieces, seed=0)
    self.tokenizer = RealmTokenizerFast(vocab_file=str(vocab))
    model, lengths = SIZES[size]
    self.batch, self.query, self.block, self.masks = lengths
    self.config = RealmConfig(
      vocab_size=len(pieces),
      pad_token_id=self.tokenizer.pad_token_id,
      **model,
    )
    self.output_dir = output_dir
    torch.manual_seed(0)

  def save(
    self,
    name: str,
    model: RealmPreTrainedModel,
    shared: tuple[str, ...] = _SHARED,
  ) -> None:
    """Writes a model and its vocabulary to the folder with this name."""
    model._tied_weights_keys = [*(model._tied_weights_keys or ()), *shared]
    model.save_pretrained(self.output_dir / name)
    self.tokenizer.save_pretrained(self.output_dir / name)

  def expect(self, name: str, **arrays: Any) -> None:
    """Writes the inputs and the outputs of a model."""
    save_arrays(self.output_dir / name / EXPECTED, arrays)

  def batch_of_both(self) -> tuple[list[Tokens], list[list[Tokens]]]:
    """Draws queries, then candidates for each, the null block first."""
    queries = [self.inputs.query(self.query) for _ in range(self.batch)]
    candidates = []
    for _ in range(self.batch):
      blocks = range(self.config.num_candidates - 1)
      others = [self.inputs.block(self.block) for _ in blocks]
      candidates.append([self.inputs.null_block, *others])
    return queries, candidates

  def padded(
    self, queries: list[Tokens], candidates: list[list[Tokens]]
  ) -> dict[str, np.ndarray]:
    """Pads queries to [b, q], and candidates to [b, k, l]."""
    blocks = np.stack([padded(blocks, self.block) for blocks in candidates])
    return {"query": padded(queries, self.query), "candidates": blocks}

  def bert_inputs(
    self,
    rows: list[Tokens],
    length: int | None = None,
    *,
    candidates: bool = False,
  ) -> dict[str, torch.Tensor]:
    """Returns ids, mask and types, [n, l], or [b, k, l] for candidates.

    By default, they are as long as the longest row.
    """
    flat = as_inputs(self.inputs, rows, length or max(map(len, rows)))
    if not candidates:
      return flat
    shape = (-1, self.config.num_candidates)
    return {name: value.unflatten(0, shape) for name, value in flat.items()}


def make_two_towers(realm: RandomRealm) -> None:
  """Computes relevance, with a separate embedder for queries."""
  model = RealmScorer(realm.config, RealmEmbedder(realm.config))
  randomize(model)
  realm.save("two_towers", model, shared=())
  queries, candidates = realm.batch_of_both()
  with torch.no_grad():
    relevance = _score(realm, model, queries, candidates)
  inputs = realm.padded(queries, candidates)
  realm.expect("two_towers", **inputs, relevance=relevance)


def make_scorer_and_encoder(realm: RandomRealm) -> None:
  """Computes REALM's loss, and the gradient of every parameter.

  The last query has fewer masks than others, so its last mask is not scored.
  """
  scorer = randomize(RealmScorer(realm.config))
  encoder = randomize(RealmKnowledgeAugEncoder(realm.config))
  realm.save("scorer", scorer)
  realm.save("encoder", encoder)
  queries, candidates = realm.batch_of_both()
  positions, targets = _mask(realm, queries)
  weights = np.ones(positions.shape, np.float32)
  weights[-1, -1] = 0
  joint = _joint_inputs(realm, queries, candidates)
  labels = np.full((len(queries), joint["input_ids"].shape[-1]), _NOT_SCORED)
  for row, scored in enumerate(weights > 0):
    labels[row, positions[row, scored]] = targets[row, scored]
  relevance = _score(realm, scorer, queries, candidates)
  output = encoder(
    **joint,
    relevance_score=relevance,
    labels=torch.from_numpy(labels),
    mlm_mask=torch.from_numpy(labels != _NOT_SCORED),
  )
  tuned = _tuned_loss(
    realm, scorer, encoder, queries, candidates, positions, targets, weights
  )
  output.loss.backward()
  logits = output.logits.detach().reshape(*joint["input_ids"].shape, -1)
  common = realm.padded(queries, candidates)
  common |= {"relevance": relevance, "loss": output.loss}
  realm.expect("scorer", **common, **gradients(scorer))
  realm.expect(
    "encoder",
    **common,
    mask_positions=positions,
    mask_targets=targets,
    mask_weights=weights,
    logits=np.stack([logits[i][:, at] for i, at in enumerate(positions)]),
    tuned_loss=tuned,
    **gradients(encoder),
  )


@torch.no_grad()
def _tuned_loss(
  realm: RandomRealm,
  scorer: RealmScorer,
  encoder: RealmKnowledgeAugEncoder,
  queries: list[Tokens],
  candidates: list[list[Tokens]],
  *masks: np.ndarray,
) -> torch.Tensor:
  """Returns the loss of the step with which our speed is compared."""
  length = realm.query + realm.block

  def joint(first: int, limit: int | None) -> dict[str, torch.Tensor]:
    return realm.bert_inputs(
      [
        realm.inputs.joint(query, block, length)
        for query, blocks in zip(queries, candidates, strict=True)
        for block in blocks[first:limit]
      ]
    )

  positions, targets, weights = map(torch.from_numpy, masks)
  return step.tuned_loss(
    scorer,
    encoder,
    query=realm.bert_inputs(queries),
    blocks=realm.bert_inputs([b for blocks in candidates for b in blocks[1:]]),
    null=realm.bert_inputs([realm.inputs.null_block]),
    joint=joint(1, None),
    joint_null=joint(0, 1),
    positions=positions,
    targets=targets,
    weights=weights,
  )


def _mask(
  realm: RandomRealm, queries: list[Tokens]
) -> tuple[np.ndarray, np.ndarray]:
  """Masks queries; returns the masks' positions and targets, [b, m]."""
  positions, targets = [], []
  for query in queries:
    words = np.arange(1, len(query) - 1)
    places = realm.inputs.rng.choice(words, realm.masks, replace=False)
    positions.append(np.sort(places))
    targets.append([query[place] for place in positions[-1]])
    for place in places:
      query[place] = realm.inputs.mask_id
  return np.stack(positions), np.stack(targets)


def _joint_inputs(
  realm: RandomRealm, queries: list[Tokens], candidates: list[list[Tokens]]
) -> dict[str, torch.Tensor]:
  """Joins each query with the body of each of its candidates, [b, k, j]."""
  length = realm.query + realm.block
  return realm.bert_inputs(
    [
      realm.inputs.joint(query, block, length)
      for query, blocks in zip(queries, candidates, strict=True)
      for block in blocks
    ],
    candidates=True,
  )


def _score(
  realm: RandomRealm,
  model: RealmScorer,
  queries: list[Tokens],
  candidates: list[list[Tokens]],
) -> torch.Tensor:
  flat = [block for blocks in candidates for block in blocks]
  blocks = realm.bert_inputs(flat, realm.block, candidates=True)
  return model(
    **realm.bert_inputs(queries),
    **{f"candidate_{name}": value for name, value in blocks.items()},
  ).relevance_score


def make_open_qa(realm: RandomRealm) -> None:
  """Computes values for questions and answers, over stored vectors and texts.

  The losses are from training. The predicted spans are from evaluation, where
  the number of searched blocks is the number of blocks that are read.
  """
  config, rng = realm.config, realm.inputs.rng
  # A word is at least one token, and no body may be longer than a block.
  words = rng.integers(8, realm.block // 3, config.num_block_records)
  texts = [realm.inputs.text(int(count)).capitalize() for count in words]
  records = np.array([text.encode() for text in texts], object)
  retriever = RealmRetriever(records, realm.tokenizer)
  model = randomize(RealmForOpenQA(config, retriever=retriever))
  size = (config.num_block_records, config.retriever_proj_size)
  model.block_emb = torch.from_numpy(rng.normal(0, 0.5, size)).float()
  realm.save("open_qa", model)
  retriever.save_pretrained(realm.output_dir / "open_qa")

  # The span head's last outputs: scores, starts and ends. They are copied,
  # because the reader adds the relevance to the scores in place.
  logits: list[torch.Tensor] = []

  def record(module: torch.nn.Module, arguments: Any, output: Any) -> None:
    logits[:] = [tensor.detach().clone() for tensor in output]

  model.reader.qa_outputs.register_forward_hook(record)
  results, total = [], torch.tensor(0.0)
  for i in range(realm.batch):
    question = f"{realm.inputs.text(4)}?"
    encoded = realm.tokenizer([question], return_tensors="pt")
    with torch.no_grad():
      vector = model.embedder(**encoded).projected_score[0]
    best = torch.topk(model.block_emb @ vector, config.searcher_beam_size)
    # The answer is in the first block, in a block that is not read, or in none.
    source = [texts[best.indices[0]], texts[best.indices[-1]], "? ! ?"][i % 3]
    answer = " ".join(source.split()[1:3])
    answer_ids = realm.tokenizer([answer], add_special_tokens=False).input_ids
    model.training = True  # Only for this module, so there is no dropout.
    output = model(**encoded, answer_ids=answer_ids).reader_output
    total = total + output.loss / realm.batch
    result = _result(realm, output, logits, encoded.input_ids.shape[1])
    model.training = False
    with torch.no_grad():
      chosen = model(**encoded)
    results.append(
      {
        **result,
        "question": question,
        "answer": answer,
        "query": padded(encoded.input_ids.tolist(), realm.query)[0],
        "rows": best.indices,
        "relevance": best.values,
        "has_answer": output.retriever_correct,
        "prediction": realm.tokenizer.decode(chosen.predicted_answer_ids),
        "predicted_row": best.indices[chosen.reader_output.block_idx],
      }
    )
  total.backward()
  realm.expect(
    "open_qa",
    texts=texts,
    loss=total,
    **{
      name: np.stack([as_array(result[name]) for result in results])
      for name in results[0]
    },
    **gradients(model),
  )


def _result(
  realm: RandomRealm, output: Any, logits: list[torch.Tensor], body_start: int
) -> dict[str, Any]:
  """Returns one example's values, with spans by position in the bodies."""
  scores, starts, ends = (part.numpy() for part in logits)
  shape = (len(scores), realm.block, realm.config.max_span_width)
  placed = np.full(shape, np.nan, np.float32)
  is_answer = np.zeros(shape, bool)
  block, span = np.nonzero(scores > np.finfo(np.float32).min / 2)
  place = block, starts[span] - body_start, ends[span] - starts[span]
  placed[place] = scores[block, span]
  is_answer[place] = output.reader_correct.numpy()[block, span]
  start, end = output.start_pos.item(), output.end_pos.item()
  return {
    "span_logits": placed,
    "is_answer": is_answer,
    "retriever_loss": output.retriever_loss,
    "reader_loss": output.reader_loss,
    "span": (output.block_idx.item(), start - body_start, end - start),
  }


def make_all(output_dir: Path, vocab: Path, *, size: str) -> None:
  """Creates all models in one of `SIZES`."""
  realm = RandomRealm(output_dir, vocab, size)
  realm.save("embedder", randomize(RealmEmbedder(realm.config)))
  realm.save("reader", randomize(RealmReader(realm.config)))
  make_two_towers(realm)
  make_scorer_and_encoder(realm)
  make_open_qa(realm)


def main() -> None:
  """Creates all models."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--output_dir", type=Path, required=True)
  parser.add_argument("--vocab", type=Path, required=True)
  options = parser.parse_args()
  make_all(options.output_dir, options.vocab, size="base")


if __name__ == "__main__":
  main()
