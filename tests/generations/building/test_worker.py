"""Workers: their numbers, and what the first one tells the others."""

import dataclasses
import threading
import time

import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.files.sole_process import SoleProcessError, sole_process
from realm_jax.generations.building import assignment
from realm_jax.generations.building.assignment import (
  Assignment,
)
from realm_jax.generations.building.current_builder import CurrentBuilder
from realm_jax.generations.building.generation_builder import (
  GenerationBuilder,
  OtherWorkError,
)
from realm_jax.generations.building.helper import Helper
from realm_jax.generations.building.worker import WorkerNumber
from realm_jax.generations.store import layout
from tests.generations.builds import build, generation_config, save


@pytest.mark.parametrize(
  "text, message",
  [
    ("3/3", "worker 3 of 3; want a number from 0 to 2"),
    ("0/0", "worker 0 of 0; want a number from 0 to 0"),
    ("1", "no worker's number; write 0/4"),
    ("-1/4", "no worker's number"),
    ("a/b", "no worker's number"),
  ],
)
def test_another_text_is_no_number(text, message):
  with pytest.raises(ValueError, match=message):
    WorkerNumber.parse(text)


_ASSIGNED = Assignment(
  step=500,
  identity="abc",
  num_workers=4,
  corpus_version=1,
  corpus_fingerprint="f",
  base=None,
)


@pytest.fixture
def helper(tmp_path, corpus, generations_dir):
  """Returns a helper as worker 1 of 2 that waits for half a second at most."""

  def make(*, stop=None, is_done=lambda: False):
    number = WorkerNumber(1, 2)
    return Helper(
      number,
      CurrentBuilder(
        corpus,
        lambda version: GenerationBuilder(
          generation_config(),
          version,
          generations_dir=generations_dir,
          number=number,
        ),
      ),
      checkpoints=CheckpointStore(tmp_path),
      generations_dir=generations_dir,
      is_done=is_done,
      poll_seconds=0.02,
      stop=stop or threading.Event(),
      patience_seconds=0.3,
    )

  return make


def test_another_number_of_workers_is_waited_for_and_then_an_error(
  helper, generations_dir
):
  assignment.write(generations_dir, _ASSIGNED)
  began = time.monotonic()
  with pytest.raises(
    OtherWorkError, match="among 4 workers, and this is worker 1/2; start all"
  ):
    helper().run()
  assert time.monotonic() - began >= 0.3


@pytest.mark.usefixtures("one_device")
def test_other_settings_than_the_first_workers_are_an_error(
  helper, generations_dir, corpus, tmp_path
):
  save(tmp_path, corpus, 500)
  own = dataclasses.replace(
    _ASSIGNED,
    num_workers=2,
    corpus_version=corpus.version,
    corpus_fingerprint=corpus.fingerprint,
  )
  assignment.write(generations_dir, own)
  with pytest.raises(OtherWorkError, match="same gin files and bindings"):
    helper().run()


def test_a_checkpoint_that_is_gone_is_passed_over(
  helper, generations_dir, corpus
):
  own = dataclasses.replace(
    _ASSIGNED,
    num_workers=2,
    corpus_version=corpus.version,
    corpus_fingerprint=corpus.fingerprint,
  )
  assignment.write(generations_dir, own)
  stop = threading.Event()
  threading.Timer(0.5, stop.set).start()
  helper(stop=stop).run()


@pytest.mark.usefixtures("one_device")
def test_a_worker_that_helps_alone_ends_once_the_generation_is_there(
  tmp_path, corpus
):
  save(tmp_path, corpus, 500)
  assert build(tmp_path, corpus) == [500]
  assert build(tmp_path, corpus, worker="1/2") == []


@pytest.mark.usefixtures("one_device")
def test_each_number_is_one_process(tmp_path, corpus, generations_dir):
  save(tmp_path, corpus, 500)
  workers = generations_dir / layout.WORKERS
  with (
    sole_process(workers, "worker-0"),
    pytest.raises(SoleProcessError, match=r"has a worker-0 .*--worker=0/2"),
  ):
    build(tmp_path, corpus)
  assert build(tmp_path, corpus) == [500]
