"""The stages of scripts/gpu_check, with programs that do nothing in place of those that need a GPU."""

import json
import os
import subprocess

import pytest
from conftest import ROOT

if not (ROOT / "scripts/gpu_check").exists():
    pytest.skip("not in a clone", allow_module_level=True)

PROGRAMS = ("smla", "test_gpu", "test_contract", "test_layers", "fuzz_c_api")


@pytest.fixture
def run(tmp_path):
    """run(missing, failing, options) -> exit code, stages of gpu_check.json by name, calls of the fuzzer"""

    def run(missing=(), failing=(), options=()):
        programs, out = tmp_path / "bin", tmp_path / "out"
        programs.mkdir()
        out.mkdir()
        for name in (*PROGRAMS, "nvidia-smi"):
            if name in missing:
                continue
            (programs / name).write_text(
                f'#!/bin/sh\necho "$0 $OUT $*" >> {tmp_path}/calls\nexit {int(name in failing)}\n'
            )
            (programs / name).chmod(0o755)
        env = {**os.environ, "OUT": str(out), "PATH": f"{programs}:/usr/bin:/bin"}
        done = subprocess.run(
            [ROOT / "scripts/gpu_check", *options, programs], env=env, capture_output=True, timeout=60
        )
        stages = json.loads((out / "gpu_check.json").read_text())["stages"]
        calls = (tmp_path / "calls").read_text().splitlines()
        fuzzer = [call.split(" ", 1)[1] for call in calls if call.startswith(f"{programs}/fuzz_c_api ")]
        return done.returncode, {stage["name"]: stage["result"] for stage in stages}, (out, fuzzer)

    return run


def test_the_fuzzer_runs_for_a_minute_on_the_gpu(run):
    code, stages, (out, calls) = run()
    assert code == 0
    assert {"doctor", "tests", "stages", "fuzz", "goldens", "bench"} <= set(stages)
    assert stages["fuzz"] == "ok"
    assert calls == [f"{out} --engine cuda --seconds 60 --seed 1 fuzz/corpus/c_api"]
    assert list((ROOT / "fuzz/corpus/c_api").iterdir())


def test_a_finding_of_the_fuzzer_is_a_failure(run):
    code, stages, _ = run(failing=["fuzz_c_api"])
    assert code == 1
    assert stages["fuzz"] == "FAILED (exit 1)" and stages["goldens"] == "ok"


def test_a_fuzzer_that_was_not_built_is_skipped_visibly(run):
    code, stages, (_, calls) = run(missing=["fuzz_c_api"])
    assert code == 0 and not calls
    assert stages["fuzz"].startswith("skipped: no ") and stages["fuzz"].endswith("/fuzz_c_api here")


def test_stages_can_be_left_out(run):
    code, stages, (_, calls) = run(options=["--without", "fuzz,goldens"])
    assert code == 0 and not calls
    assert stages["fuzz"] == stages["goldens"] == "skipped: --without"


def test_mutants_need_the_kit_and_nothing_else(tmp_path):
    command = [ROOT / "scripts/gpu_check", "--mutants", tmp_path / "bin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        f"cuda_mutants: no {tmp_path}/bin/../mutants/kit.json; scripts/cuda_mutants --pack makes it\n"
    )
