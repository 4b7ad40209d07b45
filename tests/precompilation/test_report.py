"""What a recipe costs is said plainly, and what would make it fit."""

import dataclasses

import jax
import pytest

from realm_jax.partitioning.mesh import make_mesh
from realm_jax.precompilation.advice import advice
from realm_jax.precompilation.chips import CHIPS
from realm_jax.precompilation.compiler import Compiled, needed_temporaries
from realm_jax.precompilation.estimate import estimate
from realm_jax.precompilation.programs.program import SEARCH, STEP, Program
from realm_jax.precompilation.report import Report
from realm_jax.training.useful_flops import Work
from tests.precompilation.tiny_recipe import recipe

_GIB = 2**30
_CHIP = CHIPS["v5e"]
_MODULE = """HloModule m
ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {
  %x = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  ROOT %y = f32[1024,1024]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%f, \
backend_config={"window_config":{"estimated_cycles":"3000000"}}
}
%f (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[1024,1024]{1,0:T(8,128)} negate(%p)
}
"""


def _estimate(compiled, *, kind=STEP, useful_flops=0.0):
  program = Program(
    kind=kind,
    name="8 × 384",
    function=jax.jit(lambda x: x @ x),
    arguments=(jax.ShapeDtypeStruct((1024, 1024), "float32"),),
    mesh=make_mesh(),
    work=Work(useful_flops, 0.0),
  )
  jaxpr = program.trace().jaxpr.jaxpr
  return estimate(program, jaxpr, compiled, _CHIP)


def _of_size(arguments, temporaries, text=_MODULE):
  return Compiled(text, int(arguments * _GIB), 0, int(temporaries * _GIB), 0)


def test_the_largest_of_the_bounds_is_the_estimate():
  found = _estimate(_of_size(1, 2), useful_flops=8 * 1.97e10)
  # Of the mesh's 8 devices each has an eighth of the product.
  assert found.flops_per_chip == 2 * 1024**3 / 8
  assert found.traffic_bytes == 2 * 4 * 1024**2
  assert found.bounds is not None
  assert found.bounds.cycles == pytest.approx(3e6 / _CHIP.clock)
  assert found.seconds == found.bounds.cycles
  # A tenth of a millisecond of work at the peak, in two.
  assert found.utilisation == pytest.approx(0.05, rel=0.01)


def test_a_program_that_does_not_fit_says_so_and_what_would_help():
  too_large = _estimate(_of_size(3, 16, text=None))
  assert not too_large.fits
  config = recipe(64).train
  assert config is not None
  found = advice(config, too_large, _CHIP)
  report = Report("v5e:2x4", _CHIP, 8, [too_large], advice=found)
  text = report.text()
  assert "It does not fit: training step 8 × 384 (20.40 of 16.91 GB)" in text
  # 3 GiB remain, and temporaries in bfloat16, or of a smaller batch, are less.
  assert 'BertConfig.dtype = "bfloat16"' in text
  assert "11.0 GiB" in text
  assert "BATCH_SIZE = 48" in text
  # The state is no reason, so dividing it does not help.
  assert "FSDP" not in text
  assert report.json()["hbm_bytes"] is None


def test_a_state_that_is_too_large_is_divided():
  too_large = _estimate(_of_size(14, 4, text=None))
  config = recipe(64).train
  assert config is not None
  found = advice(config, too_large, _CHIP)
  assert any("FSDP = 2 " in line and "11.0 GiB" in line for line in found)


def test_a_step_must_fit_beside_the_vectors_of_an_exact_index():
  step = _estimate(_of_size(3, 12))
  small, large = (
    _estimate(_of_size(size, 0), kind=SEARCH) for size in (0.5, 1)
  )
  report = Report("v5e:2x4", _CHIP, 8, [step, small])
  assert report.fits
  report = dataclasses.replace(report, estimates=[step, large])
  assert not report.fits
  assert "beside the vectors" in report.text()


@pytest.mark.parametrize(
  ("message", "temporaries"),
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
      "for HLO temporaries (1.5T) exceeds available HBM (15.75G).",
      int(1.5 * 2**40),
    ),
    (
      "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.00G "
      "of 15.75G hbm. Exceeded hbm capacity by 2.25G.",
      15 * _GIB,
    ),
    ("INTERNAL: something else", None),
  ],
)
def test_what_libtpu_says_of_a_program_that_does_not_fit(message, temporaries):
  assert needed_temporaries(message, 3 * _GIB) == temporaries
