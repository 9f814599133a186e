"""scripts/vllm_check: what it compares and what it skips. The runs themselves need vLLM."""

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from conftest import ROOT

SCRIPT = ROOT / "scripts/vllm_check"


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("vllm_check", str(SCRIPT))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def result(*tokens, margins=(1.0, 0.1, 1.0)):
    one = {"prompt": 5, "tokens": list(tokens), "margins": list(margins), "logprobs": [-x for x in tokens]}
    return {"outputs": [one]}


def test_tokens_may_differ_from_a_near_tie_on(check):
    assert check.difference(result(3, 4, 5), result(3, 4, 5)) == ""
    assert check.difference(result(3, 4, 5), result(3, 9, 9)) == ""  # the second token's lead is 0.1
    assert "prompt of 5: token 0" in check.difference(result(3, 4, 5), result(9, 4, 5))
    assert "token 2" in check.difference(result(3, 4, 5), result(3, 4, 9))
    said = check.same_tokens(result(3, 4, 5), result(3, 9, 5))
    assert said == "1 of 3 tokens before a near tie, log-probabilities within 0.000"


def test_fp8_caches_may_be_as_far_from_bf16_as_vllms_own(check):
    def shifted(*by):
        made = result(3, 4, 5)
        made["outputs"][0]["logprobs"] = [-x + y for x, y in zip((3, 4, 5), by, strict=True)]
        return made

    bf16, own = result(3, 4, 5), shifted(0.1, -0.2, 0.0)
    bad, how = check.further(bf16, shifted(-0.2, 0.1, 0.1), own)
    assert bad == "" and how == "log-probabilities differ from bf16 by 0.133; with vLLM's backend, by 0.100"
    assert check.further(bf16, shifted(0.2, 0.2, 0.2), own)[0] == "too far; "
    assert check.further(bf16, result(9, 4, 5), own)[0] == "no tokens in common; "


def test_a_folder_without_vllm_is_refused(tmp_path):
    run = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert run.returncode == 1 and "wanted a folder with the package vllm" in run.stderr


def test_what_cannot_run_is_skipped_by_name(check, tmp_path):
    assert check.why_no_tokens(str(tmp_path / "python"), dict(os.environ)) == (
        f"{tmp_path}/python: No such file or directory"
    )


def test_a_failure_is_the_exit_code(check, capsys):
    table = check.Table()
    table.line("tokens", "a", "skipped: no GPU")
    assert not table.failed
    table.line("tokens", "b", "failed: differs")
    table.line("tokens", "c", "ok")
    assert table.failed and capsys.readouterr().out.count("\n") == 3


def workload(*tokens, preemptions=0, cached=0):
    made = result(*tokens)
    made["outputs"][0]["cached"] = cached
    decode = {"tokens": 1, "requests": 1, "ms": 2.0, "host_ms_layer": 0.1}
    steps = [{**decode, "tokens": 5, "ms": 9.0}, decode, {**decode, "ms": 3.0}, {**decode, "ms": 2.5}]
    return {**made, "steps": steps, "preemptions": preemptions}


def test_vllms_own_backend_may_be_missing_and_the_plug_in_may_not(check, monkeypatch, capsys, tmp_path):
    """On sm_80 vLLM has none; then the runs on smla are compared with each other."""
    runs = {
        "plug-in": workload(3, 4, 5),
        "own indexer": workload(3, 4, 6),
        "preemption": workload(3, 4, 5),
        "chunks, prefix cache": workload(3, 4, 5, cached=4),
    }

    def generate(python, environment, run, out):
        made = runs.get(run.name)
        return ({"impl": ["SmlaSparseImpl"], "workloads": [made]}, "") if made else (None, "no valid backend")

    monkeypatch.setattr(check, "generate", generate)
    monkeypatch.setattr(check, "gpus_of", lambda *_: 1)
    table = check.Table()
    check.tokens("python3", {}, table, tmp_path, 2, check.TOKENS)
    lines = {x["what"]: x["result"] for x in table.lines}
    assert lines[check.OWN] == "skipped: no valid backend" and lines["plug-in"] == "ran: SmlaSparseImpl"
    assert "failed: against plug-in: prompt of 5: token 2" in lines["own indexer"]
    assert "nothing was preempted" in lines["preemption"]
    assert lines["chunks, prefix cache"].startswith("ok: 3 of 3")
    assert lines["graphs"] == "failed: no valid backend"
    two = [lines[run.name] for run in check.TOKENS if run.gpus == 2]
    assert len(two) == 9 and set(two) == {"skipped: 1 GPU"}


def test_models_that_a_version_lacks_are_skipped_by_name(check, tmp_path):
    table = check.Table()
    runs = check.runs_of(tmp_path, table, "")
    assert runs and not [run.name for run in runs if "GLM" in run.name]
    assert [line["result"] for line in table.lines] == ["skipped: this vLLM has no such model"]
    (tmp_path / "vllm/models/glm5next").mkdir(parents=True)
    assert len(check.runs_of(tmp_path, table, "GLM")) == 5 and len(table.lines) == 1


def test_steps_on_vllms_base_class_need_it(check):
    table = check.Table()
    check.parents(sys.executable, dict(os.environ), table)
    assert table.lines[0]["result"] == "skipped: this vLLM has no base class that smla uses"


def test_runs_are_chosen_by_name(check):
    assert [x.name for x in check.chosen(check.TOKENS, "^fp8_ds_mla")] == ["fp8_ds_mla", "fp8_ds_mla, graphs"]


def timed(host, decode=(2.0, 3.0, 2.5), prompts=(9.0, 9.0)):
    """A workload of one request: steps with prompts, then decode steps."""
    steps = [{"tokens": 5, "requests": 1, "ms": ms, "host_ms_layer": host} for ms in prompts]
    steps += [
        {"tokens": 1, "requests": 1, "ms": ms, "host_ms_layer": host + i / 100} for i, ms in enumerate(decode)
    ]
    for step in steps:
        step["host_ms_step"] = 3 * step["host_ms_layer"]
    return {**result(3, 4, 5), "steps": steps}


def test_steps_with_prompts_have_a_median_of_their_own(check):
    assert check.summary(timed(0.1)) == {
        "decode_ms": 2.5,
        "decode_ms_q1": 2.0,
        "decode_host_ms_layer": 0.11,
        "decode_host_ms_layer_q1": 0.1,
        "decode_host_ms_step": 0.33,
        "decode_host_ms_step_q1": 0.3,
        "prompts_ms": 9.0,
        "prompts_ms_q1": 9.0,
        "prompts_host_ms_layer": 0.1,
        "prompts_host_ms_layer_q1": 0.1,
        "prompts_host_ms_step": 0.3,
        "prompts_host_ms_step_q1": 0.3,
    }
    assert "prompts_ms" not in check.summary(timed(0.1, prompts=()))


def test_times_are_those_of_neighbours(check, monkeypatch, tmp_path):
    """Both engines of a run are in what it wrote. Without vLLM's own backend the plug-in runs alone."""
    alone = {"workloads": [timed(0.1)]}, ""

    def generate(python, environment, run, out):
        if "--beside" not in run.arguments:
            assert run.backend == "SMLA" and run.arguments[-2:] == ("--kv-cache-dtype", "bfloat16")
            return alone
        if "FLASH_ATTN" in run.name:
            return None, "no such backend"
        return {"workloads": [timed(0.2)], "beside": [{"workloads": [timed(0.1)]}]}, ""

    monkeypatch.setattr(check, "generate", generate)
    table = check.Table()
    check.times("python3", {}, table, tmp_path, check.TIMES)
    assert not table.failed and len(table.lines) == 2 * 3 + 2 * 2
    assert table.lines[0]["what"] == "16 heads, fp8_ds_mla, FLASHMLA_SPARSE, 1 requests"
    assert table.lines[1]["what"] == "16 heads, fp8_ds_mla, the plug-in beside it, 1 requests"
    assert table.lines[2]["ratios"]["decode_host_ms_layer"] == 0.52
    assert table.lines[-2]["result"] == "skipped: no such backend"
    assert table.lines[-1]["what"] == "128 heads, bfloat16, SMLA, 1 requests"
    alone = None, "the plug-in fails"
    check.times("python3", {}, table, tmp_path, check.TIMES)
    assert table.failed and table.lines[-1]["result"] == "failed: the plug-in fails"
