"""Log-likelihoods of a real HTTP server, which can fail on demand."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from harness.language_model_server import (
  LanguageModelServer,
  log_probs_of,
  tokens_of,
)
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import (
  RetrievalUnavailableError,
  WaitPreemptedError,
)
from realm_jax.served_reader.scoring import ServedLanguageModel, Text
from realm_jax.training.stages.stage import StepOnHost


@pytest.fixture
def server():
  with LanguageModelServer() as server:
    yield server


@pytest.fixture
def model(server, tmp_path):
  return ServedLanguageModel(
    server.url,
    "tiny",
    requests_at_once=4,
    score_cache=tmp_path / "scores.sqlite",
  )


@pytest.fixture
def texts(model):
  alps = {"title": "Die Alpen – 山", "text": "Zürich lies in Europe. {query}"}
  return [
    model.text(alps, "where is Zürich?", "in Europe"),
    model.text(None, "where is Zürich?", "in Europe"),
    model.text(alps, "wo, ü?", "Zürich, 山"),
  ]


def _wanted(text: Text, *, mean: bool = False) -> float:
  prompt, target = tokens_of(text.prompt), tokens_of(text.target)
  own = np.float64(log_probs_of([*prompt, *target])[len(prompt) :])
  return float(own.mean() if mean else own.sum())


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("kind", ["characters", "bytes", "prompt_logprobs"])
def test_they_are_sums_over_the_targets_tokens(
  kind, begins, server, model, texts, tmp_path
):
  server.kind, server.begins = kind, begins
  model.check()
  found = model.score(texts, StepOnHost(tmp_path, 0)).log_likelihoods
  assert found == pytest.approx([_wanted(text) for text in texts], rel=1e-6)
  assert texts[0].prompt.startswith("Die Alpen – 山\nZürich")
  # A passage with the answer makes it likely.
  assert found[0] > found[1]
  mean = dataclasses.replace(model, mean_likelihood=True)
  found = mean.score(texts, StepOnHost(tmp_path, 1)).log_likelihoods
  wanted = [_wanted(text, mean=True) for text in texts]
  assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", ["chat", "none"])
def test_an_endpoint_without_them_is_refused(kind, server, model):
  server.kind = kind
  with pytest.raises(RealmError, match="/v1/completions"):
    model.check()


def test_a_template_that_cuts_a_token_is_refused(server, model):
  with pytest.raises(RealmError, match="let PROMPT end in a sign"):
    dataclasses.replace(
      model, prompt="{query} answer", target="{answer}"
    ).check()


def test_the_key_is_the_environments(server, model, monkeypatch):
  server.key = "secret"
  with pytest.raises(RealmError, match="API_KEY_VARIABLE names"):
    model.check()
  model = dataclasses.replace(model, api_key_variable="READER_KEY")
  with pytest.raises(RealmError, match="export READER_KEY"):
    model.check()
  monkeypatch.setenv("READER_KEY", "secret")
  model.check()
  assert "secret" not in repr(model)
  with pytest.raises(RealmError, match="without a password"):
    dataclasses.replace(model, reader_url="http://me:secret@host/v1")


def test_what_was_scored_is_not_asked_again(server, model, texts, tmp_path):
  model = dataclasses.replace(model, price_per_million_tokens=1e6)
  first = model.score([*texts, texts[0]], StepOnHost(tmp_path, 0))
  tokens = sum(len(tokens_of("".join(text))) + 1 for text in texts)
  assert first.metrics["reader_tokens"] == tokens
  assert first.metrics["reader_price"] == tokens
  assert first.metrics["reader_requests"] == len(texts)
  server.stop()
  again = model.score([*texts, texts[0]], StepOnHost(tmp_path, 1))
  assert again.metrics["reader_requests"] == again.metrics["reader_price"] == 0
  np.testing.assert_array_equal(again.log_likelihoods, first.log_likelihoods)


@pytest.mark.parametrize("fault", ["refused", "broken", "hanging", "undefined"])
def test_a_text_without_a_score_stays_so_in_its_step(
  fault, server, model, texts, tmp_path
):
  model = dataclasses.replace(model, tries=2, request_timeout_seconds=1.0)
  setattr(server, fault, "wo, ü?")
  found = model.score(texts, StepOnHost(tmp_path, 7))
  assert np.isneginf(found.log_likelihoods).tolist() == [False, False, True]
  assert found.metrics["missing_scores"] == 1
  setattr(server, fault, "")
  again = model.score(texts, StepOnHost(tmp_path, 7))
  np.testing.assert_array_equal(again.log_likelihoods, found.log_likelihoods)
  # In another step it is asked for again.
  later = model.score(texts, StepOnHost(tmp_path, 8))
  assert np.isfinite(later.log_likelihoods).all()
  server.refused = "nowhere"
  with pytest.raises(RealmError, match="scores none of the 1 texts"):
    other = [Text("nowhere:", " there")]
    model.score(other, StepOnHost(tmp_path, 9))


@pytest.mark.parametrize("away", ["gone", "overloaded", "failing"])
def test_an_endpoint_that_is_away_is_waited_for(
  away, server, model, texts, tmp_path
):
  def leave() -> None:
    if away == "gone":
      server.stop()
    server.status = {"overloaded": 429, "failing": 500}.get(away, 200)

  def come_back() -> None:
    server.status = 200
    if away == "gone":
      server.start()

  leave()
  timer = threading.Timer(1.0, come_back)
  timer.start()
  found = model.score(texts, StepOnHost(tmp_path, 0))
  timer.join()
  wanted = [_wanted(text) for text in texts]
  assert found.log_likelihoods == pytest.approx(wanted, rel=1e-6)
  leave()
  model = dataclasses.replace(model, away_seconds=0.5)
  with pytest.raises(RetrievalUnavailableError, match="raise AWAY_SECONDS"):
    model.score([Text("a:", " b")], StepOnHost(tmp_path, 1))


@pytest.mark.parametrize("hanging", [True, False])
def test_who_waits_can_be_stopped(hanging, server, model, texts, tmp_path):
  if hanging:
    server.hanging = "Zürich?"
  else:
    server.stop()
  began, stop = time.monotonic(), threading.Event()
  timer = threading.Timer(1.0, stop.set)
  timer.start()
  with pytest.raises(WaitPreemptedError):
    model.score(texts, StepOnHost(tmp_path, 0, stop.is_set))
  timer.join()
  assert time.monotonic() - began < 20
  assert not (tmp_path / "served_reader").exists()


def test_records_before_the_oldest_checkpoint_are_removed(
  model, texts, tmp_path
):
  for step in (0, 10, 31, 64):
    (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    model.score(texts, StepOnHost(tmp_path, step))
  (tmp_path / "checkpoints" / "10").rmdir()
  model.score(texts, StepOnHost(tmp_path, 96))
  names = sorted(path.name for path in (tmp_path / "served_reader").iterdir())
  assert names == ["00000031.0.npz", "00000064.0.npz", "00000096.0.npz"]
