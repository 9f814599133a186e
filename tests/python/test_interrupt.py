"""Signals during long calls. Each program would run for minutes if nothing ended its call."""

import os
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT

HEAD = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore Ctrl-C
import numpy as np
import smla

def later(seconds, number=signal.SIGINT):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()

WIDTH = 16384
x, w = np.ones((512, 1, WIDTH), np.float32), np.ones((1, WIDTH, WIDTH), np.float32)
context = smla.Context(*sys.argv[1:2], threads=0 if sys.argv[1] == "reference" else 2,
                       kernel=None if sys.argv[1] == "reference" else "project=cpu_generic_project")

def long_call():
    smla.project(x, w, context=context)
    raise SystemExit("the call ran to its end")

def check_context():
    assert (smla.project(x[:2], w[:, :3], context=context) == WIDTH).all()
"""
ENGINES = ("reference", "cpu")
SECONDS = 100  # each program takes one or two, and the import of NumPy


def run(engine, body):
    code = HEAD + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", code, engine],
        cwd=ROOT / "tests/python",
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def passes(engine, body):
    done = run(engine, body)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_a_call_and_the_context_serves_on(engine):
    passes(
        engine,
        """
        for _ in range(2):
            later(0.5)
            try:
                long_call()
            except KeyboardInterrupt:
                check_context()
        """,
    )


STAGES = {
    "attend": "smla.attend(q, rows_of, listed[:n], softmax_scale=0.1, context=context).out",
    "score": "smla.score(index_q[:n], weights[:n], keys, ends[:n], columns=1 << 16, context=context)",
    "score_select": "smla.score_select(index_q[:n], weights[:n], keys, ends[:n], 9, context=context).indices",
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_a_stage_within_a_second(engine, stage):
    """After the interrupt, the same call with fewer tokens returns the same bits as before it."""
    passes(
        engine,
        f"""
        context = smla.Context(sys.argv[1], threads=0 if sys.argv[1] == "reference" else 2)
        draw = np.random.default_rng(0)
        rows_of = smla.Cache(draw.normal(size=(512, 64, 576)).astype(np.float32), "row_f32", 64)
        keys = smla.Cache(draw.normal(size=(1024, 64, 128)).astype(np.float32), "row_f32", 64)
        listed = draw.integers(0, 512 * 64, (2048, 8192)).astype(np.int32)
        many, weights = draw.normal(size=(2048, 64, 576)).astype(np.float32), np.ones((2048, 64), np.float32)
        index_q, ends = np.ascontiguousarray(many[:, :, :128]), np.full(2048, 1 << 16, np.int32)

        def call(n):
            q = many[:n]
            return {STAGES[stage]}

        before = call(2)
        for _ in range(2):
            struck = []
            timer = threading.Timer(
                0.3, lambda: (struck.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT))
            )
            timer.start()
            try:
                call(2048)
            except KeyboardInterrupt:
                assert time.monotonic() - struck[0] < 1
            else:
                raise SystemExit("the call ran to its end")
            assert np.array_equal(call(2), before)
        """,
    )


def test_ctrl_c_ends_generate():
    """Interrupts the prompt in transformers' generate(); afterwards the model generates the same tokens."""
    pytest.importorskip("transformers")
    passes(
        "cpu",
        """
        import torch
        from transformers_models import generate, pair, prompts
        _, model = pair("v32")
        before = generate(model, prompts())[0].tolist()
        long = prompts(1, 60_000)
        later(2)
        try:
            generate(model, long)
        except KeyboardInterrupt:
            assert generate(model, prompts())[0].tolist() == before
        else:
            raise SystemExit("generate ran to its end")
        """,
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_a_program(engine):
    done = run(engine, "later(0.5); long_call()")
    assert done.returncode == -2 and done.stderr.endswith("\nKeyboardInterrupt\n"), done


def test_what_another_handler_raises():
    passes(
        "cpu",
        """
        class Late(Exception):
            pass

        def raise_late(number, frame):
            raise Late("too late")

        signal.signal(signal.SIGALRM, raise_late)
        signal.alarm(1)
        try:
            long_call()
        except Late as error:
            assert str(error) == "too late"
            check_context()
        """,
    )


def test_a_handler_that_raises_nothing_runs_and_the_call_goes_on():
    """Its own calls of smla are refused: the call that it interrupts uses context and workspace."""
    passes(
        "cpu",
        """
        ran, refused = [], []

        def note(number, frame):
            ran.append(time.monotonic())
            try:
                check_context()
            except smla.InvalidArgument as error:
                refused.append(str(error))
            if len(ran) == 2:
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 1)
        try:
            long_call()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(ran) == 2 and len(refused) == 2 and "interrupt" in refused[0], refused
        check_context()
        """,
    )


def test_calls_of_other_threads_go_on():
    passes(
        "cpu",
        """
        results = []
        small = w[:, :128]
        thread = threading.Thread(target=lambda: results.append(smla.project(x, small, context=context)))
        later(0.3)
        try:
            thread.start()
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            thread.join()
        assert (results[0] == WIDTH).all()
        """,
    )


def test_a_prefill_of_a_session_leaves_the_request_as_it_was():
    passes(
        "reference",
        """
        import tempfile
        from pathlib import Path
        from golden_files import Golden
        golden = Golden("D1")
        with tempfile.TemporaryDirectory() as folder:
            golden.write_checkpoint(Path(folder))
            layer = smla.Layer.from_pretrained(folder, golden.layers[0]["layer_idx"], context=context)
        tokens = 200_000
        hidden = np.random.default_rng(0).normal(size=(tokens, layer.info["hidden_size"])).astype(np.float32)
        ended, never = (layer.session(max_tokens=tokens, max_step_tokens=tokens) for _ in range(2))
        begun = [session.forward(hidden[:9]) for session in (ended, never)]
        later(1)
        try:
            ended.forward(hidden[9:])
        except KeyboardInterrupt:
            assert ended.length() == 9
        else:
            raise SystemExit("the step ran to its end")
        assert (ended.forward(hidden[9:20]) == never.forward(hidden[9:20])).all() and ended.length() == 20
        """,
    )
