"""Serves a run's reader that writes, as if it were a language model.

    python -m harness.served_run runs/fid 8000

It reads texts with the templates in `TEMPLATES`, and returns the likelihood of
an answer as a single token's. So `gin/runs/served_reader.gin` with these
templates trains a retriever with the same reader as `FREEZE_READER` does within
a run.
"""

import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

import realm_jax
from harness.language_model_server import LanguageModelServer
from realm_jax.configuration import command_line
from realm_jax.evaluation.run import TrainedRun
from realm_jax.inputs import reader_texts
from realm_jax.models.generative_reader import GenerativeReader

TEMPLATES = {
  "PASSAGE": "Title: {title}\nText: {text}\n\n",
  "PROMPT": "Question: {query}\nAnswer:",
  "TARGET": " {answer}",
}
_TEXT = re.compile(
  r"(Title: (.*?)\nText: (.*)\n\n)?(?:Question: )?(.*)\nAnswer: (.*)", re.DOTALL
)


class ServedRun(LanguageModelServer):
  """A server of a run's reader that writes."""

  def __init__(self, run: TrainedRun, port: int = 0):
    super().__init__()
    self._run, self._port, self._lock = run, port, threading.Lock()

  def answer(self, request: dict[str, Any], key: str) -> tuple[int, Any]:
    del key
    prompt = str(request["prompt"])
    self.prompts.append(prompt)
    if not (match := _TEXT.fullmatch(prompt)):
      return 400, {"error": f"{prompt!r:.80} is not of {TEMPLATES}"}
    passage, title, text, query, answer = match.groups()
    with self._lock:
      log_p = self._log_p(passage and (title, text), query, answer)
    before = prompt[: match.start(5) - 1]
    logprobs = {
      "tokens": [before, f" {answer}", " x"],
      "text_offset": [0, len(before), len(prompt)],
      "token_logprobs": [None, log_p, -1.0],
    }
    choice = {"index": 0, "text": f"{prompt} x", "logprobs": logprobs}
    usage = {"completion_tokens": 1, "total_tokens": len(prompt.split())}
    return 200, {"choices": [choice], "usage": usage}

  def _log_p(self, block: Any, query: str, answer: str) -> float:
    """Returns log p(y|z, x), with a block's title and text or without."""
    run, reader = self._run, self._run.components.text_reader
    view = run.corpus.view(reader.view)
    passages = np.zeros((1, 1, reader.input_length), np.int32)
    if block:
      parts = re.split(r"\{(?:title|text)\}", reader.passage)
      texts = parts[0], block[0], parts[1], block[1], parts[2]
      ids = [one for text in texts for one in view.vocabulary.encode(text)]
      ids = ids[: reader.input_length]
      passages[0, 0, : len(ids)] = ids
    prompts = reader_texts.prompt_ids(reader, view, [query])
    read = reader_texts.joined(prompts, passages, end_id=reader.end_id)
    scores = run.compute(
      *(GenerativeReader.score, reader, run.params["reader"]),
      token_ids=np.asarray(read),
      targets=reader_texts.target_ids(reader, view, [answer])[:, None],
    )
    return float(scores[1][0, 0, 0])


def main(argv: Sequence[str]) -> None:
  """Serves a run until it is interrupted."""
  _, model_dir, port = argv
  with ServedRun(realm_jax.load(model_dir), int(port)) as server:
    print(f"serving {model_dir} at {server.url}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
  command_line.run(main, takes_texts=True)
