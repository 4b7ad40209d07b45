"""The feedback log: what a service writes, and what is learned from it."""

import contextlib
import json

import numpy as np
import pytest

from realm_jax.errors import RealmError
from realm_jax.feedback import examples as examples_lib
from realm_jax.feedback.examples import FeedbackExamples
from realm_jax.feedback.log import (
  FeedbackError,
  FeedbackLog,
  Served,
  checked_rewards,
  drawn_order,
  log_files,
)
from tests.feedback.lists import all_lists, lists_of
from tests.full_disk import full_disk


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
  monkeypatch.setattr(examples_lib, "_POLL_SECONDS", 0.0)


@pytest.fixture
def opened():
  """Opens logs, and closes them at the end."""
  with contextlib.ExitStack() as stack:

    def open_log(directory, **settings):
      log = FeedbackLog(directory, **settings)
      return stack.enter_context(contextlib.closing(log))

    yield open_log


def _served(query="who?", shown=(1, 0)):
  return Served(
    query,
    np.array([7, 8, -9]),
    np.array([70, 80, 90]),
    np.array([3.0, 2.0, 1.0], np.float32),
    np.array(shown),
    0.5,
    *(100, 50),
  )


def _add(log, served, rewards=None):
  name = log.new_id()
  log.add_lists([name], [served])
  if rewards is not None:
    log.add_rewards([(name, rewards)])
  return name


def test_a_reader_follows_the_log_across_files_and_services(
  tmp_path, monkeypatch, opened
):
  monkeypatch.setattr("realm_jax.feedback.log._FILE_BYTES", 2000)
  log = opened(tmp_path)
  following = FeedbackExamples(tmp_path)
  late = _add(log, _served("late"))
  for number in range(40):
    _add(log, _served(f"q{number}"), [1.0, number / 40])
  log.close()
  # A service that is started again takes what belongs to lists before it.
  again = opened(tmp_path)
  again.add_rewards([(late, 0.25)])
  following.poll()
  assert len(log_files(tmp_path)) > 3
  found = {one.served.query: one for one in all_lists(tmp_path)}
  assert len(found) == 41
  assert found["late"].rewards == 0.25
  one = found["q8"]
  assert one.rewards == [1.0, 0.2]
  for name, value in vars(_served("q8")).items():
    np.testing.assert_array_equal(getattr(one.served, name), value)
  own, again = (
    [one.served.query for one in lists_of(examples)]
    for examples in (following, FeedbackExamples(tmp_path))
  )
  assert own == again and 25 < len(own) < 41
  assert not following.left_out


def test_a_repeated_request_changes_nothing(tmp_path, opened):
  log = opened(tmp_path)
  name = _add(log, _served())
  assert log.add_rewards([(name, 1.0), (name, 0.0)]) == 1
  assert log.add_rewards([(name, 0.5)]) == 0
  # A service that does not remember it writes it; the first one counts.
  assert opened(tmp_path).add_rewards([(name, 0.5)]) == 1
  (found,) = all_lists(tmp_path)
  assert found.rewards == 1.0


def test_only_ids_of_the_service_and_numbers_within_bounds_are_taken(
  tmp_path, opened
):
  log = opened(tmp_path / "own")
  name, other = _add(log, _served()), opened(tmp_path / "other").new_id()
  for wrong in (other, "", "a.b", name + "x", "é.é"):
    with pytest.raises(FeedbackError, match="request_id"):
      log.add_rewards([(name, 1.0), (wrong, 1.0)])
  for wrong in (float("nan"), float("inf"), 2, "1", None, True, [1.0, "2"]):
    with pytest.raises(FeedbackError, match="a reward is"):
      checked_rewards(wrong)
  number = len(_served().shown)
  with pytest.raises(FeedbackError, match=f"list has {number} passages"):
    log.add_rewards([(name, [1.0] * (number + 1))])
  assert not all_lists(tmp_path / "own")


def test_a_poisoned_log_is_bounded_and_reported(tmp_path, opened):
  log = opened(tmp_path)
  _add(log, _served(), 1.0)
  for number in range(100):
    _add(log, _served("Flood "), 1.0)
    _add(log, _served(f"q{number}"), 0.0)
  wrong_length = _add(log, _served("short"))
  log.close()
  # The service that was started again does not know how long the list was.
  later = opened(tmp_path)
  later.add_rewards([(wrong_length, [1.0])])
  later.close()
  with log_files(tmp_path)[0].open("a") as file:
    file.write('no json\n{"rewards": NaN, "of": "a"}\n[]\n')
    file.write('{"rewards": 1.0, "of": "never seen"}\n')
    bad = {**vars(_served()), "list": "x", "shown": [5]}
    file.write(json.dumps(bad, default=np.ndarray.tolist) + "\n")
    # One that a crash has cut off.
    file.write('{"list": "y", "que')
  for split in ("train", "validation"):
    found = FeedbackExamples(tmp_path, split)
    lists = [one.served.query for one in lists_of(found)]
    assert lists.count("Flood ") <= 50
    assert "short" not in lists
    assert found.left_out["malformed lines"] == 4
    assert found.left_out["rewards of an unknown list, or repeated"] == 1
    assert found.left_out["rewards of a list of another length"] == 1
  # It goes on in a file of its own.
  _add(opened(tmp_path), _served("after"), 1.0)
  assert "after" in {one.served.query for one in all_lists(tmp_path)}


def test_baselines_are_of_the_rewards_before(tmp_path, opened):
  log = opened(tmp_path)
  for rewards in (1.0, [0.5, 0.5], 0.0, 0.0):
    for query in ("easy", "hard"):
      _add(log, _served(query), rewards if query == "easy" else 0.0)
  total, count, of_query = 0.0, 0, {}
  for one in lists_of(FeedbackExamples(tmp_path)):
    own = of_query.setdefault(one.served.query, [])
    mean = total / max(count, 1)
    expected = (sum(own) + 2 * mean) / (len(own) + 2)
    assert one.baseline == pytest.approx(expected)
    reward = np.sum(one.rewards)
    own.append(reward)
    total, count = total + reward, count + 1


def test_a_full_log_takes_no_more(tmp_path, opened):
  log = opened(tmp_path, max_bytes=1000)
  names = [_add(log, _served(str(number))) for number in range(10)]
  assert log.is_full
  size = sum(file.stat().st_size for file in log_files(tmp_path))
  with pytest.raises(FeedbackError, match="is full"):
    log.add_rewards([(names[0], 1.0)])
  assert size < 1600


def test_orders_are_drawn_by_their_probabilities():
  scores = np.tile([1.0, 0.0, -1.0], (20_000, 1))
  drawn = drawn_order(
    scores, temperature=0.8, k=2, generator=np.random.default_rng(0)
  )
  p = np.exp(scores[0] / 0.8) / np.exp(scores[0] / 0.8).sum()
  found = np.mean((drawn == [1, 0]).all(axis=1))
  assert found == pytest.approx(p[1] * p[0] / (1 - p[1]), abs=0.01)
  first = np.bincount(drawn[:, 0], minlength=3) / len(drawn)
  np.testing.assert_allclose(first, p, atol=0.01)


def test_a_log_is_on_a_disk():
  with pytest.raises(RealmError, match="bucket"):
    FeedbackLog("gs://bucket/feedback")


def test_a_full_disk_loses_no_reward_that_was_accepted(tmp_path, opened):
  log = opened(tmp_path)
  name = _add(log, _served("before"))
  with full_disk():
    for number in range(20):
      # Lists are served, whether or not they are logged.
      _add(log, _served(f"q{number}"))
    with pytest.raises(OSError):
      for _ in range(20):
        log.add_rewards([(log.new_id(), 0.0)])
      log.add_rewards([(name, 1.0)])
  # What was refused can be sent again, and half a line spoils no other.
  assert log.add_rewards([(name, 1.0)]) == 1
  (found,) = all_lists(tmp_path)
  assert (found.served.query, found.rewards) == ("before", 1.0)


def test_half_a_key_is_replaced(tmp_path, opened):
  (tmp_path / "key").write_bytes(b"")
  name = opened(tmp_path).new_id()
  assert len((tmp_path / "key").read_bytes()) == 32
  assert opened(tmp_path).add_rewards([(name, 1.0)]) == 1
