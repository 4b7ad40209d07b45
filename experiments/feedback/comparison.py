"""Compares systems over time, and plots their rewards."""

import contextlib
import dataclasses
import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags

import realm_jax
from experiments.ablation.report import import_pyplot
from experiments.comparing import Comparison, Seed, SystemSteps
from experiments.demo.stages import demo_worlds
from experiments.feedback.agent import Agent
from experiments.pipeline import (
  Step,
  StoppedError,
  Value,
  call,
  run,
  running_beside,
)
from experiments.world import names
from experiments.world.world import World, edit_facts
from realm_jax.console import is_stopping
from realm_jax.corpus.update import update_corpus
from realm_jax.storage.json_files import json_lines, write_json
from realm_jax.training.metric_rows import read_rows

# An agent that pauses to think, and asks at most 16 questions a second.
_QUESTIONS_AT_ONCE, _PAUSE_SECONDS = 8, 0.5
_TEMPERATURE = 1.0
# Steps of each of the two rounds, which start after one and two thirds of the
# time.
_ROUND_STEPS = 150
_NUM_EDITS = 400
# Width of the plot's bins, in seconds.
_BIN = 20.0


class System(NamedTuple):
  """A way to learn from feedback: never, in rounds, or continuously."""

  title: str
  learns: str
  changes: bool = False


SYSTEMS = {
  "frozen": System("frozen retriever", "never"),
  "rounds": System("retrained in two rounds", "rounds"),
  "live": System("live", "always"),
  "frozen_changing": System("frozen retriever, facts change", "never", True),
  "live_changing": System("live, facts change", "always", True),
}


class FeedbackSteps(SystemSteps):
  """The steps of all systems, in the folder of a seed."""

  gin_folders = "demo", "feedback"

  def common_start(self) -> tuple[Step, Step]:
    """Trains the common start of all systems and the agent's reader."""
    retriever, reader = self.start()
    agent = self.train(
      *("agent", "open_qa", retriever, reader),
      self.first_snapshot("agent"),
      TRAIN_QUESTIONS=self.path("world/questions-train.jsonl"),
    )
    return run(retriever), run(agent)


class Live:
  """A service of a run, which is trained while the service answers.

  Files that an interrupted measurement has left are removed.

  Args:
    steps: Steps of the seed.
    name: Name of the system, and of its folder.
    start: Run with the initial retriever.
  """

  def __init__(self, steps: FeedbackSteps, name: str, start: Step):
    self.folder, self.learns = steps.folder / name, SYSTEMS[name].learns
    self.corpus = steps.folder / f"{name}-corpus"
    for folder in (self.folder, self.corpus):
      shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(steps.corpus_dir, self.corpus)
    bindings: dict[str, Value] = {
      "CORPUS_DIR": str(self.corpus),
      "FEEDBACK_DIR": str(self.folder / "feedback"),
    }
    if self.learns == "rounds":
      bindings["SAVE_EVERY_STEPS"] = _ROUND_STEPS
    training = steps.train(name, "feedback", start, None, None, **bindings)
    self._training = training.command
    self._build = steps.builder(name, CORPUS_DIR=str(self.corpus))
    # Creates the first checkpoint and its snapshot.
    call(self._training, num_steps=0)
    call(dataclasses.replace(self._build, flags=("--once",)))
    self._rounds = list[subprocess.Popen[bytes]]()

  @contextlib.contextmanager
  def served(self) -> Iterator[str]:
    """Serves the run during a `with` block, and yields the address.

    Raises:
      StoppedError: SIGTERM came before the service answered.
      RealmError: The service, the builder or the trainer failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
      port = listener.getsockname()[1]
    arguments = [
      *("-m", "realm_jax.serve", f"--model_dir={self.folder}", "--follow"),
      *(f"--corpus_dir={self.corpus}", f"--port={port}", "--accept_feedback"),
      *(f"--explore_temperature={_TEMPERATURE}", "--pool_size=8"),
    ]
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
      for name, command in (
        ("serve", arguments),
        ("build_index", self._build.arguments()),
      ):
        log = self.folder / f"{name}.log"
        stack.enter_context(running_beside(command, log))
      while True:
        require_not_stopped()
        with contextlib.suppress(OSError):
          health(url)
          break
        time.sleep(1.0)
      if self.learns == "always":
        command, log = self._training.arguments(), self.folder / "train.log"
        stack.enter_context(running_beside(command, log))
      try:
        yield url
      finally:
        for training in self._rounds:
          training.terminate()
          training.wait()

  def train_round(self, share: float) -> None:
    """Starts one of the two rounds of training, if it is due.

    `share` is the share of the time that has passed.
    """
    number = len(self._rounds) + 1
    if self.learns == "rounds" and share > number / 3:
      steps = {"NUM_STEPS": number * _ROUND_STEPS}
      training = dataclasses.replace(
        self._training, bindings={**self._training.bindings, **steps}
      )
      arguments = [sys.executable, *training.arguments()]
      with (self.folder / "train.log").open("a") as log:
        self._rounds.append(
          subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)
        )

  def change_facts(self, world: World) -> World:
    """Edits facts that test questions ask for, and updates the corpus."""
    edited = edit_facts(world, count=_NUM_EDITS, seed=0)
    path, changes = self.folder / "changes.jsonl", 0
    with json_lines(path) as write:
      for old, new in zip(world.documents, edited.documents, strict=True):
        text = new.text(edited.facts)
        if old.text(world.facts) != text:
          write({"id": new.id, "title": new.title, "text": text})
          changes += 1
    print(f"{changes} documents change", flush=True)
    update_corpus([str(path)], self.corpus, tagger=names.tag)
    return edited

  def refresh_seconds(self, served_at: Mapping[int, float]) -> float:
    """Returns the median time from a step until its vectors are in use."""
    done = {
      row["step"]: row["run_seconds"]["until"] for row in read_rows(self.folder)
    }
    times = [served_at[step] - done[step] for step in {*served_at} & {*done}]
    return statistics.median(times) if times else 0.0


def health(url: str) -> dict[str, Any]:
  """Returns the `/healthz` of a service."""
  with urllib.request.urlopen(f"{url}/healthz", timeout=60) as reply:
    return json.load(reply)


def require_not_stopped() -> None:
  """Raises a `StoppedError` after SIGTERM, also of a process that failed."""
  if is_stopping():
    raise StoppedError("stopped by SIGTERM; the same command continues")


def _measure(name: str, seed: Seed) -> dict[str, Any]:
  """Runs a system for --seconds, and returns the metrics of its rewards."""
  steps = FeedbackSteps(seed.folder, seed.number, seed.gin_files)
  seconds, world = flags.FLAGS.seconds, seed.world
  start, agent_run = steps.common_start()
  live = Live(steps, name, start)
  reader = realm_jax.load(agent_run.folder, corpus_dir=steps.corpus_dir)
  rng, curve = np.random.default_rng(seed.number), list[tuple[float, float]]()
  changes, is_changed = SYSTEMS[name].changes, False
  served_at = dict[int, float]()
  with live.served() as url:
    agent = Agent(url, reader, seed=seed.number)
    began = time.monotonic()
    while (share := (time.monotonic() - began) / seconds) < 1:
      require_not_stopped()
      if changes and not is_changed and share > 0.5:
        world, is_changed = live.change_facts(world), True
      live.train_round(share)
      # Only facts of test questions change.
      possible = world.questions["test" if changes else "train"]
      chosen = rng.choice(len(possible), _QUESTIONS_AT_ONCE, replace=False)
      questions = [possible[number] for number in chosen.tolist()]
      rewards = agent.ask(
        [question.text for question in questions],
        [question.answer for question in questions],
      )
      served_at.setdefault(health(url)["checkpoint"], time.time())
      now = time.monotonic() - began
      curve.append((now, statistics.mean(rewards)))
      time.sleep(max(0.0, len(curve) * _PAUSE_SECONDS - now))
    last = health(url)
  write_json(seed.folder / f"{name}-curve.json", curve)
  times, rewards = np.array(curve).T
  fifths = np.minimum(times / seconds * 5, 4).astype(int)
  return {
    "reward_first": float(rewards[fifths == 0].mean()),
    "reward_middle": float(rewards[fifths == 2].mean()),
    "reward_last": float(rewards[fifths == 4].mean()),
    "refresh_seconds": live.refresh_seconds(served_at),
    "steps": last["checkpoint"],
    "lists": last["feedback"]["lists"],
    "policy": agent.logits.tolist(),
  }


COMPARISON = Comparison(
  "feedback",
  {name: system.title for name, system in SYSTEMS.items()},
  (
    *("reward_first", "reward_middle", "reward_last"),
    *("refresh_seconds", "steps", "lists"),
  ),
  demo_worlds,
  _measure,
)


def plot(output_dir: Path, seeds: int) -> None:
  """Writes curves.png: mean rewards over time, over all finished seeds."""
  pyplot = import_pyplot()
  figure, panels = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
  for name, system in SYSTEMS.items():
    axes = panels[int(system.changes)]
    binned: dict[int, list[float]] = {}
    for seed in range(seeds):
      path = output_dir / f"seed-{seed}" / f"{name}-curve.json"
      if path.exists():
        for passed, reward in json.loads(path.read_text()):
          binned.setdefault(int(passed / _BIN), []).append(reward)
    points = sorted(binned)
    axes.plot(
      [(point + 0.5) * _BIN for point in points],
      [statistics.mean(binned[point]) for point in points],
      label=system.title,
    )
  for axes, title in zip(
    panels, ("", "facts change at half time"), strict=True
  ):
    axes.set_xlabel("seconds")
    axes.set_title(title)
    axes.legend()
  panels[0].set_ylabel("share of right answers")
  figure.tight_layout()
  figure.savefig(output_dir / "curves.png", dpi=120)
