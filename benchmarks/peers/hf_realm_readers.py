"""Values of Hugging Face's reader and open-QA model.

A span is identified by its block (in the order of retrieval), its first token
in the block's body, and its width less one. `span_logits` [b k l w] has NaN for
spans that are not valid.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import RealmRetriever
from transformers.models.realm.modeling_realm import RealmForOpenQA, RealmReader

from benchmarks.peers.hf_realm_random import RandomRealm
from benchmarks.peers.tensors import gradients, randomize

_SAME_BIAS = r".*cls\.predictions\.decoder\.bias"
_NO_ANSWER = -1


def make_reader(realm: RandomRealm) -> None:
  """Computes span scores, losses and predictions for given blocks.

  Every third example has no correct block and no correct span.
  """
  config = realm.config
  model = randomize(RealmReader(config))
  realm.save("reader", model, same=(_SAME_BIAS,))
  queries, rng = realm.queries(), realm.inputs.rng
  candidates = [realm.blocks(config.reader_beam_size) for _ in queries]
  relevance = torch.from_numpy(
    -np.sort(rng.normal(0, 2, (len(queries), config.searcher_beam_size)))
  ).float()
  relevance.requires_grad_()
  results, total = [], torch.tensor(0.0)
  for i, query in enumerate(queries):
    joints = [
      realm.inputs.joint(query, block, config.reader_seq_len)
      for block in candidates[i]
    ]
    inputs = realm.bert_inputs(joints)
    body = [len(joint) - len(query) - 1 for joint in joints]
    position = torch.arange(inputs["input_ids"].shape[-1])[None]
    in_body = (position >= len(query)) & (
      position < len(query) + torch.tensor(body)[:, None]
    )
    is_right = i % 3 < 2
    starts, ends = _random_answers(realm, len(query), body, is_right)
    has_answers = rng.random(config.searcher_beam_size) < 0.3 * is_right
    has_answers[-1] = is_right
    with _span_logits(model) as logits:
      output = model(
        **inputs,
        relevance_score=relevance[i],
        block_mask=in_body,
        start_positions=torch.tensor(starts),
        end_positions=torch.tensor(ends),
        has_answers=torch.tensor(has_answers),
      )
    total = total + output.loss / len(queries)
    result = _result(realm, output, logits, body_start=len(query))
    results.append({**result, "has_answer": has_answers})
  total.backward()
  realm.expect(
    "reader",
    query=realm.padded_queries(queries),
    candidates=realm.padded_candidates(candidates),
    relevance=relevance,
    relevance_gradient=relevance.grad,
    loss=total,
    **_stacked(results),
    **gradients(model),
  )


def make_open_qa(realm: RandomRealm) -> None:
  """Computes values for questions and answers, over stored vectors and texts.

  The losses are those of training. The predicted spans are those of evaluation,
  where the number of blocks searched is the number of blocks read.
  """
  config, rng = realm.config, realm.inputs.rng
  # A word is at least one token, and no body may be longer than a block.
  words = rng.integers(8, realm.sizes.block // 3, config.num_block_records)
  texts = [realm.inputs.text(int(count)).capitalize() for count in words]
  records = np.array([text.encode() for text in texts], object)
  retriever = RealmRetriever(records, realm.tokenizer)
  model = randomize(RealmForOpenQA(config, retriever=retriever))
  size = (config.num_block_records, config.retriever_proj_size)
  model.block_emb = torch.from_numpy(rng.normal(0, 0.5, size)).float()
  realm.save("open_qa", model, same=(_SAME_BIAS,))
  retriever.save_pretrained(realm.folder("open_qa"))

  results, total = [], torch.tensor(0.0)
  for i in range(realm.sizes.batch):
    question = f"{realm.inputs.text(4)}?"
    encoded = realm.tokenizer([question], return_tensors="pt")
    with torch.no_grad():
      vector = model.embedder(**encoded).projected_score[0]
    found = torch.topk(model.block_emb @ vector, config.searcher_beam_size)
    # The answer is in the first block, in one that is not read, or in none.
    source = [texts[found.indices[0]], texts[found.indices[-1]], "? ! ?"][i % 3]
    answer = " ".join(source.split()[1:3])
    answer_ids = realm.tokenizer([answer], add_special_tokens=False).input_ids
    model.training = True  # Only for this module, so there is no dropout.
    with _span_logits(model.reader) as logits:
      output = model(**encoded, answer_ids=answer_ids).reader_output
    total = total + output.loss / realm.sizes.batch
    result = _result(
      realm, output, logits, body_start=encoded.input_ids.shape[1]
    )
    model.training = False
    with torch.no_grad():
      chosen = model(**encoded)
    results.append(
      {
        **result,
        "question": question,
        "answer": answer,
        "query": realm.padded_queries([encoded.input_ids[0].tolist()])[0],
        "rows": found.indices,
        "relevance": found.values,
        "has_answer": output.retriever_correct,
        "prediction": realm.tokenizer.decode(chosen.predicted_answer_ids),
        "predicted_row": found.indices[chosen.reader_output.block_idx],
      }
    )
  total.backward()
  realm.expect(
    "open_qa",
    texts=texts,
    loss=total,
    **_stacked(results),
    **gradients(model),
  )


@contextlib.contextmanager
def _span_logits(reader: RealmReader) -> Iterator[list[Any]]:
  """Collects the outputs of the span head: scores, starts and ends.

  They are copied, because the reader adds the relevance to the scores in place.
  """
  kept: list[Any] = []

  def keep(
    module: torch.nn.Module,
    arguments: tuple[torch.Tensor, ...],
    output: tuple[torch.Tensor, ...],
  ) -> None:
    del module, arguments
    kept.extend(tensor.detach().clone() for tensor in output)

  handle = reader.qa_outputs.register_forward_hook(keep)
  try:
    yield kept
  finally:
    handle.remove()


def _result(
  realm: RandomRealm, output: Any, logits: list[Any], *, body_start: int
) -> dict[str, Any]:
  """Returns one example's values, with spans by position in the bodies."""
  scores, starts, ends = (part.numpy() for part in logits)
  shape = (len(scores), realm.sizes.block, realm.config.max_span_width)
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


def _random_answers(
  realm: RandomRealm, body_start: int, body: list[int], is_right: bool
) -> tuple[list[list[int]], list[list[int]]]:
  """Draws two answers per block: first and last positions in the joint input.

  In the first block, one answer is a single word and one is too wide for a
  span.
  """
  starts, ends = [], []
  for block, length in enumerate(body):
    first = realm.inputs.rng.integers(0, length - 2, 2) + body_start
    width = realm.inputs.rng.integers(0, 3, 2) if block else np.array([0, 11])
    starts.append(first.tolist() if is_right else [_NO_ANSWER] * 2)
    ends.append((first + width).tolist() if is_right else [_NO_ANSWER] * 2)
  return starts, ends


def _stacked(results: list[dict[str, Any]]) -> dict[str, np.ndarray]:
  return {
    name: np.stack([np.asarray(_plain(result[name])) for result in results])
    for name in results[0]
  }


def _plain(value: Any) -> Any:
  return value.detach().numpy() if isinstance(value, torch.Tensor) else value
