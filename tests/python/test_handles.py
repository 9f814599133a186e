"""Copies of objects that hold a handle or an address of the library, and two threads that use one of them."""

import ast
import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import smla
from conftest import ROOT
from smla import _run
from smla._handles import Bounded
from smla._views import GpuView

try:
    import torch
except ImportError:
    torch = None

PACKAGE = ROOT / "python/smla"

# classes

# What an instance of each kind is when it is copied: "itself", "another", or "refused".
HOLDERS = {
    # class: (copy.copy, copy.deepcopy, pickle)
    "context.Context": ("itself", "itself", "refused"),
    "context.Workspace": ("refused", "refused", "refused"),
    "plan.Plan": ("refused", "refused", "refused"),
    "backend.Backend": ("itself", "itself", "refused"),
    "backend.Metadata": ("refused", "refused", "refused"),
    "layer.Layer": ("itself", "itself", "refused"),
    "layer.Session": ("refused", "another", "refused"),
    "call.Call": ("refused", "refused", "refused"),
    "_handles.Bounded": ("another", "another", "another"),
    "_views.GpuView": ("refused", "refused", "refused"),
    "cache.Cache": ("another", "another", "another"),
    "tensor.Tensor": ("another", "another", "another"),
}
# Classes that hold no handle and no address, or only objects of the classes above.
OTHERS = """
    _arrays.cupy.CuPy _arrays.dlpack.DLPack _arrays.interface.Library _arrays.numpy.NumPy _arrays.torch.Torch
    _units.Described
    _fill.Struct _handles.Handle _handles.InUse _handles.Shared _outputs.Outputs _run.StageCall _run._Instead
    _views._Memory compat.deep_gemm._DenseKeys compat.deep_gemm._Queries
    compat.flash_mla.FlashMLASchedMeta compat.flashinfer._batch.Batch
    compat.flashinfer.sparse_mla_sm120.BatchSparseMLAPagedAttentionWrapper reporting.Report
    reporting._charts.Bar reporting._html.Markup tensor._Tensors tools.BenchResults torch._ops.Operator
    transformers._cache.Cache transformers._cache.CacheLayer transformers._columns.Columns
    transformers._columns.Once transformers._columns._Mask transformers._mask.NoPadding
    transformers._modules.Defaults
    transformers._modules.OnSmla transformers._modules.Options transformers._plain.Marks
    vllm.attend.Attends vllm.backend.SmlaSparseBackend vllm.impl.SmlaSparseImpl
    vllm.impl.SmlaSparseMetadataBuilder vllm.indexer_calls.Operations vllm.indexer_calls.PackKernel
    vllm.legacy.impl.SmlaSparseImpl vllm.legacy.metadata.SmlaSparseMetadata
    vllm.legacy.metadata.SmlaSparseMetadataBuilder
""".split()
PLAIN_BASES = {"NamedTuple", "IntEnum", "Enum", "Structure", "Exception", "Error", "Protocol", "TypedDict"}
PLAIN_BASES |= {"BackendNumbers", "Maxima"}  # typed dicts
# How a class would hold one: an attribute of this name, or one of these calls.
HOLDING = {
    "handle",
    "_handle",
    "address",
    "abi",
    "_packed",
    "_memory",
    "_borrowed",
    "__cuda_array_interface__",
}


def classes():
    """The classes of the package by their names in it, as they stand in the source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "_abi.py":
            continue
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {
                    base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                    for base in node.bases
                }
                if not bases & PLAIN_BASES:
                    yield f"{module}.{node.name}", node


def holds(node):
    """Whether a class sets an attribute by which such objects hold a handle or an address."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and each.attr in HOLDING:
            return True
        if isinstance(each, ast.Attribute) and each.attr in ("_acquire", "finalize"):
            return True
    return False


def test_every_class_of_the_package_is_listed():
    """A new class that holds a handle belongs into HOLDERS, with what becomes of its copies."""
    found = dict(classes())
    assert sorted(found) == sorted([*HOLDERS, *OTHERS])
    assert [name for name in OTHERS if holds(found[name])] == ["_handles.Handle"]  # of which others are made
    generated = ["_handles.Bounded"]  # contains objects of the other classes
    assert [name for name in HOLDERS if not holds(found[name])] == generated


def backend(**options):
    sizes = {"heads": 16, "max_tokens": 4, "max_requests": 2, "max_seq_len": 1024, "topk": 64}
    return smla.Backend("FLASHMLA_SPARSE", "dsa", **sizes, softmax_scale=0.1, **options)


def prepared():
    cache = smla.Cache.empty("row_f32", 1, 4, width=8)
    return smla.Call(
        smla.write_kv, ["head", "slots"], np.zeros((1, 8), np.float32), np.zeros(1, np.int32), cache
    )


def gpu_view():
    interface = {"data": (0, False), "shape": (0,), "typestr": "<i4", "version": 3}
    return GpuView(interface, None, 0)


@pytest.fixture
def make(checkpoint):
    golden, folder = checkpoint("D2")
    layer = smla.Layer.from_pretrained(folder, golden.layers[0]["layer_idx"])
    return {
        "context.Context": lambda: smla.Context("cpu", threads=1),
        "context.Workspace": lambda: smla.default_context().workspace(),
        "plan.Plan": lambda: smla.Plan(["primary"], max_tokens=4, max_requests=2, max_seq_len=64),
        "backend.Backend": backend,
        "backend.Metadata": lambda: backend().metadata(),
        "layer.Layer": lambda: layer,
        "layer.Session": layer.session,
        "call.Call": prepared,
        "_handles.Bounded": lambda: Bounded({1: prepared()}),
        "_views.GpuView": gpu_view,
        "cache.Cache": lambda: smla.Cache(np.ones((2, 4, 8), np.float32), "row_f32", 4),
        "tensor.Tensor": lambda: smla.tensor(np.arange(8, dtype=np.uint16).reshape(2, 4), "bf16"),
    }


WAYS = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("way", range(3), ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", HOLDERS)
def test_copies(name, way, make):
    value, wanted = make[name](), HOLDERS[name][way]
    assert f"{type(value).__module__}.{type(value).__name__}" == f"smla.{name}"
    if wanted == "refused":
        with pytest.raises(TypeError, match=f"^a smla.{type(value).__name__} cannot be .*: .{{10,}}"):
            WAYS[way](value)
        return
    other = WAYS[way](value)
    assert type(other) is type(value) and (other is value) == (wanted == "itself")
    del value
    gc.collect()
    del other
    gc.collect()  # nothing is freed twice


def test_a_holder_within_another_object_is_copied_by_the_same_rules(make):
    value = {"context": make["context.Context"](), "view": make["tensor.Tensor"]()}
    other = copy.deepcopy(value)
    assert other["context"] is value["context"] and other["view"] is not value["view"]
    with pytest.raises(TypeError, match="smla.Plan"):
        copy.deepcopy([make["plan.Plan"]()])


@pytest.mark.parametrize("way", range(3), ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize(
    "library", ["numpy", pytest.param("torch", marks=pytest.mark.skipif(torch is None, reason="no PyTorch"))]
)
def test_copies_of_a_view_have_the_same_values(library, way):
    bits = np.arange(16, dtype=np.uint8).reshape(2, 8)
    array = torch.from_numpy(bits) if library == "torch" else bits
    for dtype, shape in (("e4m3", (2, 8)), ("e2m1", (2, 16))):
        view = smla.tensor(array, dtype)
        other = WAYS[way](view)
        assert (other.dtype, other.shape, other.strides) == (view.dtype, shape, view.strides)
        assert (other.address == view.address) == (way == 0)
        np.testing.assert_array_equal(np.asarray(other.array), bits)
        del view
        gc.collect()
        np.testing.assert_array_equal(np.asarray(other.array), bits)


def test_a_prepared_call_keeps_its_backend_and_metadata_alive():
    on = backend(dtype="f32", kv_cache_dtype="row_f32")
    step = on.metadata()
    step.build(
        np.array([0, 1], np.int32),
        np.array([1], np.int32),
        primary=smla.PlanGroup(np.zeros((1, 16), np.int32), page_tokens=64),
    )
    tensors = {"q": np.zeros((1, 16, 576), np.float32), "out": np.zeros((1, 16, 512), np.float32)}
    cache = smla.Cache.empty("row_f32", 1, 64, width=576)
    call = on.call(step, ["q", "out"], **tensors, topk_indices=np.zeros((1, 64), np.int32), kv_cache=cache)
    held = weakref.ref(on), weakref.ref(step)
    del on, step
    gc.collect()
    assert None not in (held[0](), held[1]())
    del call
    gc.collect()
    assert held == (held[0], held[1]) and held[1]() is None


# threads


def in_use(call, *arguments):
    with pytest.raises(smla.InvalidArgument, match="in use by another call") as caught:
        call(*arguments)
    return caught.value.field


def attention(tokens=1, rows=4):
    q = np.ones((tokens, 2, 8), np.float32)
    cache = smla.Cache(np.ones((2, 4, 8), np.float32), "row_f32", 4)
    return (q, cache, np.zeros((tokens, rows), np.int32)), {"softmax_scale": 0.1}


def test_a_workspace_in_use_refuses_every_call(make):
    workspace = smla.default_context().workspace()
    arguments, options = attention()
    out = np.full((1, 2, 8), 7, np.float32)
    on = backend(dtype="f32", kv_cache_dtype="row_f32")
    q, latent = np.zeros((1, 16, 576), np.float32), np.zeros((1, 16, 512), np.float32)
    plan = smla.Plan(["primary", "index"], max_tokens=2, max_requests=1, max_seq_len=64)
    table = np.zeros((1, 8), np.int32)
    groups = {name: smla.PlanGroup(table, page_tokens=8) for name in ("primary", "index")}
    plan.build(np.array([0, 2], np.int32), np.array([2], np.int32), **groups)
    layer = make["layer.Layer"]()
    widths = {"primary": layer.info["kv_width"], "index": layer.info["index_width"]}
    caches = {name: (smla.Cache.empty("row_f32", 8, 8, width=width), table) for name, width in widths.items()}
    hidden = np.zeros((2, layer.info["hidden_size"]), np.float32)
    workspace.reserve(1 << 16)
    with workspace._in_use:
        for call in (
            lambda: smla.attend(*arguments, out=out, workspace=workspace, **options),
            lambda: on.forward(None, q, latent, workspace=workspace),
            lambda: layer.forward(hidden, plan, caches=caches, workspace=workspace),
            lambda: workspace.reserve(1 << 20),
            lambda: workspace.reset(),
            lambda: workspace.read_error(),
        ):
            assert in_use(call) == "workspace"
        assert (out == 7).all() and workspace.bytes == 1 << 16
    smla.attend(*arguments, out=out, workspace=workspace, **options)
    assert (out == 1).all()


def test_a_workspace_is_free_again_after_a_call_that_failed():
    workspace = smla.default_context().workspace()
    (q, cache, rows), options = attention()
    with pytest.raises(smla.InvalidArgument):
        smla.attend(q, cache, rows, out=q, workspace=workspace, **options)
    smla.attend(q, cache, rows, workspace=workspace, **options)


SESSION_CALLS = {
    "forward": lambda session: session.forward(np.zeros((1, session.layer.info["hidden_size"]), np.float32)),
    "topk": lambda session: session.topk,
    "candidates": lambda session: session.candidates,
    "length": lambda session: session.length(),
    "end_request": lambda session: session.end_request(),
    "truncate": lambda session: session.truncate(0),
    "copy_request": lambda session: session.copy_request(0, 0),
    "reorder": lambda session: session.reorder([0]),
    "clone": lambda session: session.clone(),
    "resize": lambda session: session.resize(max_tokens=8192),
    "options": lambda session: session.options,
    "cache_bytes": lambda session: session.cache_bytes,
    "workspace_bytes": lambda session: session.workspace_bytes,
}


def test_a_session_in_use_refuses_every_call(make):
    public = {name for name in vars(smla.Session) if not name.startswith("_")}
    assert public == set(SESSION_CALLS)
    for call in SESSION_CALLS.values():
        session = make["layer.Session"]()
        with session._in_use:
            assert in_use(call, session) == "session"
        call(session)
    with session._in_use:
        assert in_use(copy.deepcopy, session) == "session"


def run_threads(count, target):
    threads = [threading.Thread(target=target, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_share_a_session(make, threads=4, steps=60):
    """Each steps a request of its own; a step runs whole, or is refused and changes nothing."""
    layer = make["layer.Layer"]()
    session, done = layer.session(max_requests=threads), [0] * threads
    hidden = np.ones((2, layer.info["hidden_size"]), np.float32)

    def run(request):
        for _ in range(steps):
            try:
                session.forward(hidden, [(request, 2)])
                done[request] += 1
            except smla.InvalidArgument as error:
                assert error.field == "session"

    run_threads(threads, run)
    assert [session.length(request) for request in range(threads)] == [2 * count for count in done]
    assert sum(done) > 0


def test_threads_that_share_a_workspace(threads=4, calls=100):
    """Calls of growing shapes, which move the memory."""
    context, wrong, done = smla.Context("cpu", threads=2), [], []
    workspace = context.workspace()

    def run(i):
        for j in range(calls):
            arguments, options = attention(1 + (3 * i + 7 * j) % 8, 1 + 97 * j % 3000)
            try:
                got = smla.attend(*arguments, context=context, workspace=workspace, **options).out
                done.append(i)
                wrong.extend([] if (abs(got - 1) < 1e-5).all() else [j])
            except smla.InvalidArgument as error:
                assert error.field == "workspace"

    run_threads(threads, run)
    assert done and not wrong


def test_a_call_keeps_the_memory_of_a_cache_that_grows_meanwhile(monkeypatch):
    (q, cache, rows), options = attention()
    old, alive, function = weakref.ref(cache.array), [], _run._run_stage

    def grows_first(*arguments):
        cache.grow(100)
        gc.collect()
        alive.append(old() is not None)
        return function(*arguments)

    monkeypatch.setattr(_run, "_run_stage", grows_first)
    assert (smla.attend(q, cache, rows, **options).out == 1).all()
    assert all(alive) and cache.pages == 100
    gc.collect()
    assert old() is None
