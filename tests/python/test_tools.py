"""What the command line answers, through Python: doctor, capacity, explain, and python -m smla."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import smla
from smla import _library, tools

ROOT = Path(__file__).resolve().parents[2]
V32 = {
    "model_type": "deepseek_v32",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "rope_theta": 10000,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(V32))
    return tmp_path


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "smla", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment},
        capture_output=True,
        text=True,
    )


def test_doctor():
    report = smla.doctor()
    assert report["version"] == f"smla {smla.__version__}"
    assert report["cores"] >= 1 and 0 < report["memory_available_bytes"] <= report["memory_bytes"]
    assert report["best_isa"] in ("scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon")
    assert report["context"] == smla.Context().description
    checks = report["self_test"]
    assert {"attend", "score", "select", "merge", "project"} <= {check["stage"] for check in checks}
    assert report["passed"] == all(check["passed"] for check in checks if not check["skipped"])
    assert report["passed"] and all(
        check["error"] <= check["limit"] for check in checks if not check["skipped"]
    )


def test_capacity(folder):
    """The numbers of DeepSeek-V3.2: 656 bytes and 132 bytes per token in each of 61 layers."""
    report = smla.capacity(folder, context=1000, batch=3, memory=80)
    assert [(cache["cache"], cache["bytes_per_token"]) for cache in report["caches"]] == [
        ("kv", 656),
        ("index", 132),
    ]
    totals = report["totals"]
    assert totals["layers"] == 61 and totals["bytes_per_token"] == 61 * (656 + 132)
    paged = 1024 * 61 * (656 + 132)  # 16 pages of 64 tokens
    assert totals["paged_bytes_per_request"] == paged and totals["batch_bytes"] == 3 * paged
    assert totals["requests_that_fit"] == (80 << 30) // paged
    (layer,) = report["flops"]
    assert layer["attend"] == 2 * (576 + 512) * 128 * 1000 and layer["score"] == 2 * 64 * 128 * 1000
    other = smla.capacity(str(folder / "config.json"), kv_format="bf16", index_format="row_bf16", layers=2)
    assert other["totals"]["bytes_per_token"] == 2 * (576 + 128) * 2
    assert smla.capacity(folder, memory=None, mtp=False)["totals"]["layers"] == 61
    assert smla.capacity(folder, mtp=True)["totals"]["layers"] == 62


def test_configs_in_memory(folder):
    """A dict gives what its file gives; what is neither is named."""
    for function, options in ((smla.capacity, {"context": 1000}), (smla.explain, {"layer": 0})):
        got, wanted = function(V32, **options), function(folder, **options)
        for each in (got, wanted):
            each.pop("config", None)
            each.pop("model", None)
        assert got == wanted
        with pytest.raises(smla.InvalidArgument, match="config: got int, wanted a path, a dict"):
            function(3)
        with pytest.raises(smla.Error, match="model_type"):
            function({"hidden_size": 5})
        with pytest.raises(
            smla.InvalidArgument, match="config: got a dict that cannot be written as JSON .*not JSON"
        ):
            function({**V32, "dtype": object})


def test_explain_kernels(folder):
    (layer,) = smla.explain(folder, layer=3, context=5000, tokens=2)["layers"]
    assert (layer["layer"], layer["layer_kind"]) == (3, "dsa")
    stages = {stage["stage"]: stage for stage in layer["stages"]}
    assert {"write_kv", "write_index", "score_select", "attend", "up_project"} <= set(stages)
    for stage in stages.values():
        (chosen,) = [each for each in stage["candidates"] if each["chosen"]]
        assert chosen["kernel"] == stage["kernel"] and chosen["can_run"]
        assert all(each["reason"] for each in stage["candidates"] if not each["chosen"])


def test_explain_backends(folder):
    report = smla.explain(folder, device="sm_90", kv_dtype="fp8")
    options = {"heads": 128, "topk": 2048, "softmax_scale": 0.1, "kv_cache_dtype": "fp8"}
    options |= {"max_tokens": 1, "max_requests": 1, "max_seq_len": 1}
    wanted = smla.select_backend("dsa", device="sm_90", **options)
    assert (report["backend"], report["device"]) == (wanted["backend"], "sm_90")
    assert {each["backend"]: each["refusals"] for each in report["candidates"]} == {
        each["backend"]: each["refusals"] for each in wanted["candidates"]
    }
    forced = smla.explain(folder, device="cpu", backend="FLASHMLA_SPARSE")
    assert forced["backend"] == "FLASHMLA_SPARSE" and forced["forced"]


@pytest.mark.parametrize(
    "function,options,field",
    [
        (smla.capacity, {"contxt": 5}, "--contxt"),
        (smla.capacity, {"context": 0}, "--context"),
        (smla.capacity, {"context": "many"}, "--context"),
        (smla.capacity, {"memory": -1}, "--memory"),
        (smla.capacity, {"kv_format": "fp9"}, "fp9"),
        (smla.explain, {"device": "gpu"}, "device: got gpu, wanted A100"),
        (smla.explain, {"layer": 62}, "layer: got 62, wanted 0 to 61"),
        (smla.explain, {"device": "cpu", "backend": "FLASH"}, "FLASH"),
    ],
)
def test_bad_options(folder, function, options, field):
    with pytest.raises(smla.InvalidArgument, match=field) as caught:
        function(folder, **options)
    assert caught.value.field and caught.value.wanted


@pytest.mark.parametrize(
    "options,message",
    [
        ({"quick": "yes"}, "quick: got 'yes', wanted True or False"),
        ({"quick": 1}, "quick: got 1, wanted True or False"),
        ({"check_indices": []}, r"check_indices: got \[\], wanted True or False"),
        ({"threads": True}, "threads: got True, wanted a number or a str"),
        ({"threads": [1]}, r"threads: got \[1\], wanted a number or a str"),
        ({"stage": b"attend"}, "stage: got b'attend', wanted a number or a str"),
        ({"seconds": 1j}, "seconds: got 1j, wanted a number or a str"),
        ({"seconds": {}}, r"seconds: got \{\}, wanted a number or a str"),
        ({"threads": 100000}, "--threads: got 100000, wanted a whole number, 0 to .* per core"),
    ],
)
def test_options_of_a_wrong_type(options, message):
    """Nothing is measured: the error comes at once."""
    with pytest.raises(smla.InvalidArgument, match=message):
        smla.bench(**{"case": "select", "seconds": 0.01, **options})


def test_flags_are_those_of_the_program():
    flags = set()
    for command in ("bench", "capacity", "explain"):
        text = run(command, "--help").stdout
        flags |= set(re.findall(r"^ +(?:-\w,)? *--([a-z-]+)(?= {2,}|$)", text, re.MULTILINE))
    assert {flag.replace("-", "_") for flag in flags} - {"help", "json"} == tools._FLAGS


def test_bad_configs(folder, tmp_path):
    with pytest.raises(smla.IoError, match="nowhere"):
        smla.capacity(tmp_path / "nowhere")
    (folder / "config.json").write_text(json.dumps({**V32, "kv_lora_rank": -4}))
    for function in (smla.capacity, smla.explain):
        with pytest.raises(smla.DataError, match="config.json: kv_lora_rank: got -4") as caught:
            function(folder)
        assert (caught.value.got, caught.value.field) == ("-4", "config.json: kv_lora_rank")
    (folder / "config.json").write_text("{")
    with pytest.raises(smla.DataError, match="config.json"):
        smla.explain(folder)


def test_the_program(monkeypatch, tmp_path):
    assert Path(smla.program()).name == "smla"
    os.mkfifo(tmp_path / "fifo", 0o777)
    for name in ("missing", "fifo"):
        monkeypatch.setenv("SMLA_TOOL", str(tmp_path / name))
        with pytest.raises(smla.IoError, match=f"SMLA_TOOL: got .*{name}, wanted the path") as caught:
            smla.doctor()
        assert caught.value.field == "SMLA_TOOL"
    talker = tmp_path / "talker"
    talker.write_text("#!/bin/sh\necho no json; echo out of order >&2; exit 4\n")
    talker.chmod(0o755)
    monkeypatch.setenv("SMLA_TOOL", str(talker))
    assert tools.program() == str(talker)
    with pytest.raises(smla.Error, match="out of order"):
        smla.doctor()


def test_two_wheels_at_once(tmp_path):
    """smla and smla-cuda13 share their files; other packages of similar names do not matter."""
    for name in ("smla-0.1.0", "smla_tools-1.0", "smlax-2"):
        (tmp_path / f"{name}.dist-info").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _library._warn_of_two(tmp_path)
    (tmp_path / "smla_cuda13-0.1.0.dist-info").mkdir()
    with pytest.warns(RuntimeWarning, match="smla and smla-cuda13 are both installed.*uninstall both"):
        _library._warn_of_two(tmp_path)


def test_the_command_line():
    listed = run("list", "--json")
    assert listed.returncode == 0
    report = json.loads(listed.stdout)
    assert [each["name"] for each in report["backends"]] == smla.backends()
    names = {each["name"] for each in report["formats"]}
    assert {"row_f32", "fp8_656", "fp8_584", "index_fp8_132", "state_f32"} <= names
    (cpu,) = [each for each in report["engines"] if each["name"] == "cpu"]
    assert cpu["available"] and smla.Context("cpu").description.split()[1].rstrip(",") in cpu["note"]
    stages = {each["stage"] for each in report["kernels"]}
    assert {"attend", "score_select", "compress"} <= stages
    assert run("--version").stdout.split()[-1] == smla.__version__
    bad = run("list", "nonsense")
    assert bad.returncode == 2 and "nonsense" in bad.stderr
    missing = run("list", SMLA_TOOL="/nowhere/smla")
    assert missing.returncode and missing.stderr.startswith("SMLA_TOOL: got /nowhere/smla, wanted")
