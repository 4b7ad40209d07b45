"""Starts the jobs of a run together: trainer, index builder and evaluator.

    python -m realm_jax.launch.xm_launch --model_dir=runs/realm \\
      --corpus_dir=corpus --gin_file=gin/models/bert_base.gin \\
      --gin_file=gin/runs/pretrain.gin \\
      --builder_gin_file=gin/models/bert_base.gin \\
      --builder_gin_file=gin/runs/build_index.gin \\
      --gin.NUM_STEPS=10000 --builder.gin.KEEP_SNAPSHOTS=5

`--executor=local` starts them as processes on this machine. When the trainer
has ended, the index builder is stopped, and the evaluator runs, if it has gin
files; with `--evaluator_follow` it evaluates each checkpoint during training.
Trainer and builder are restarted when they fail. If one fails repeatedly
without a new checkpoint or index in between, the other jobs are stopped. Ctrl-C
stops all jobs, and the same command resumes them.

`--executor=gke` prints a manifest for `kubectl apply`, for a Google Kubernetes
Engine cluster with JobSet. `--executor=cloud` packs the tracked files of this
clone into images and submits them to an XManager on Cloud deployment, whose
address and credentials come from the environment. With either, each job has a
TPU slice, and all paths must be gs://.

`--dry_run` prints what any executor would start, and reads the gin files.
docs/accelerators.md leads from an empty project to a running pair of slices.
"""

import functools
import shlex
import sys
from collections.abc import Mapping, Sequence

from absl import app, flags, logging

from realm_jax.errors import RealmError
from realm_jax.launch import jobs as launch_jobs


def main(argv: Sequence[str], *, bindings: Mapping[str, Sequence[str]]) -> int:
  """Launches the jobs that the flags and bindings describe."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected: {shlex.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  given = flags.FLAGS
  name, jobs = launch_jobs.name_of(given), launch_jobs.plan(given, bindings)
  if given.dry_run:
    print("\n\n".join(map(str, jobs)), flush=True)
  if given.dry_run or given.executor != "local":
    # On this machine, the jobs report errors themselves, right away.
    errors = [*filter(None, map(launch_jobs.gin_error, jobs))]
    if errors:
      raise RealmError("; ".join(errors))
  if given.dry_run:
    return 0
  # The libraries of an executor are imported only if it is used.
  if given.executor == "local":
    from realm_jax.launch.local_jobs import run_locally

    return run_locally(jobs)
  if given.executor == "cloud":
    from realm_jax.launch.cloud import submit

    submit(name, jobs, given)
  else:
    from realm_jax.launch.jobset import manifest

    print(manifest(name, jobs, given), end="")
  return 0


def _parse_flags(arguments: Sequence[str]) -> list[str]:
  try:
    return flags.FLAGS(arguments)
  except SystemExit:
    # absl would exit with 1 after printing the help.
    sys.exit(0)


def run() -> None:
  """Runs the command. An error of the user is printed and exits with 2."""
  launch_jobs.define()
  # So that --help lists them.
  flags.adopt_module_key_flags(launch_jobs)
  try:
    arguments, bindings = launch_jobs.split_bindings(sys.argv)
    app.run(
      functools.partial(main, bindings=bindings),
      argv=arguments,
      flags_parser=_parse_flags,
    )
  except (RealmError, flags.Error) as error:
    print(f"xm_launch: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  run()
