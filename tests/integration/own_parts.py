"""A reader and the like that are in no package, beside those of the page."""

import dataclasses
from typing import TextIO

import jax
import jax.numpy as jnp
import my_parts
import numpy as np
from flax import linen as nn

from realm_jax.evaluation.ask import answer_from_blocks
from realm_jax.evaluation.result import Answer, Result
from realm_jax.models import sequences
from realm_jax.models.packing import TokenSequences, padded_inputs


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Writes the losses of steps to a file in MODEL_DIR."""

  file: str = "tracked.txt"

  def open(self, model_dir):
    return TrackerFile((model_dir / self.file).open("a"))


@dataclasses.dataclass
class TrackerFile:
  """The open file of a `Tracker`."""

  file: TextIO

  def write_scalars(self, step, scalars):
    self.file.write(f"{step} {scalars['loss']}\n")

  def flush(self):
    self.file.flush()

  def close(self):
    self.file.close()


class Writer(nn.Module):
  """An encoder of means and a decoder that sums: it writes word by word."""

  vocab_size: int | None = None
  size: int = 8
  num_heads = 1
  dropout_rate = 0.0

  def setup(self):
    self.words = nn.Embed(self.vocab_size, self.size)
    self.hidden = nn.Dense(self.size)

  def join(self, query, candidates, token_ids=None):
    joint = sequences.join(query, candidates, joint_length=56, separator_id=3)
    return TokenSequences(joint.token_ids.reshape(-1, 56))

  def token_logits(self, inputs, positions, token_ids):
    read = sequences.mean(inputs, self.words(inputs.token_ids))
    before = jnp.pad(token_ids, ((0, 0), (1, 0)))[:, :-1]
    written = jnp.cumsum(self.words(before), axis=1)[:, None]
    read = read.reshape(len(token_ids), -1, 1, self.size)
    return self.words.attend(jnp.tanh(self.hidden(read + written)))

  def init_parameters(self, key, *, query_length, block_length):
    query = jnp.ones((1, query_length), jnp.int32)
    inputs = padded_inputs(self.join(query, query[:, None]))
    given = inputs, query[:, :1], query[:, :1]
    return self.init(key, *given, method="token_logits")["params"]

  def for_vocabulary(self, *, vocab_size, separator_id):
    return self.clone(vocab_size=vocab_size)


@answer_from_blocks.register
def written_answers(
  reader: Writer, run, questions, token_ids, hits, answer=None
):
  def first_words(reader, params, query, blocks):
    inputs = padded_inputs(reader.join(query, blocks))
    none = jnp.zeros((len(query), 1), jnp.int32)
    logits = reader.apply(
      {"params": params}, inputs, none, none, method="token_logits"
    )
    return jax.nn.softmax(logits[:, :, 0])

  rows = np.array([[hit.block.row for hit in own] for own in hits])
  p = run.compute(
    first_words,
    reader,
    run.params["reader"],
    query=token_ids,
    blocks=run.gather(rows),
  )
  results = []
  for i, question in enumerate(questions):
    prior = np.array([hit.probability for hit in hits[i]])
    prior /= prior.sum()
    total = prior @ p[i]
    word = int(total.argmax())
    shares = prior * p[i][:, word] / total[word]
    answer = Answer(
      run.vocabulary.decode([word]),
      float(total[word]),
      shares=shares.tolist(),
    )
    results.append(
      Result(
        text=question,
        kind="question",
        answer=answer.text,
        probability=answer.probability,
        answers=[answer],
        hits=hits[i],
        source=run.source,
      )
    )
  return results


@dataclasses.dataclass(frozen=True)
class OwnStage(my_parts.TwoSearches):
  """A stage that trains a reader which answers questions."""

  asked = "question"


@dataclasses.dataclass(frozen=True)
class BrokenStage(OwnStage):
  def loss(self, encoders, batch, inputs):
    raise ValueError("a bug")


@dataclasses.dataclass(frozen=True)
class BrokenIndexConfig(my_parts.HostConfig):
  def build(self, blocks, directory=None):
    raise ValueError("a bug")
