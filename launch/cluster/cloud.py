"""A run on XManager on Cloud: images, work units, and their end."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launch.cluster import work_units
from launch.cluster.image import copy_clone
from launch.jobs import Job
from launch.options import Options
from launch.xmanager_experiments import CloudExperiment, image_of


def run_on_cloud(name: str, jobs: Sequence[Job], given: Options) -> int:
  """Builds the images, submits the jobs, and watches them if told to.

  Returns:
    0 if the run is complete or not watched, otherwise 1.
  """
  assert given.container_registry is not None
  units = work_units.divide(jobs)
  with tempfile.TemporaryDirectory() as directory:
    clone = copy_clone(Path(directory))
    images = [
      image_of(
        job,
        clone,
        registry=given.container_registry,
        base_image=given.base_image,
      )
      for job in itertools.chain(*units)
    ]
    experiment = CloudExperiment(name, queue=given.queue)
    experiment.submit(
      units,
      images,
      max_restarts=given.max_restarts,
      service_account=given.service_account,
    )
  number = experiment.name.rpartition("/")[2]
  names = ", ".join(job.name for job in jobs)
  print(f"submitted {names} as {experiment.name}", flush=True)
  if not given.watch:
    print(f"`xmc stop {number}` stops them, with the index builder", flush=True)
    return 0
  print(
    f"Ctrl-C ends this watching, not the jobs; `xmc stop {number}` stops them",
    flush=True,
  )
  return work_units.watch(experiment)
