"""smla: sparse multi-head latent attention (DeepSeek-V3.2, V4 and V4.1, GLM-5.x) on CPUs and NVIDIA GPUs.

Stages: smla.attend, smla.score, smla.select, ... (smla.stages). Around them: smla.Cache, smla.Context,
smla.Plan, smla.Backend, smla.Layer. What this machine can do: smla.doctor(), smla.explain(), smla.capacity(),
smla.bench(), and smla.report(), which shows it all.
"""

from . import rows, stages
from ._abi import VERSION as _VERSION
from ._abi import Writer
from ._run import check_call, explain_call, prepare_call
from ._views import GpuView
from .backend import Backend, Metadata, backends, select_backend, why_not
from .cache import Cache
from .call import Call
from .context import Context, Workspace, default_context, set_default_context
from .errors import (
    Cancelled,
    DataError,
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    IoError,
    OutOfMemory,
    Unsupported,
    WorkspaceTooSmall,
)
from .layer import Layer, Session
from .model import layer_info, rope_frequencies
from .plan import Plan, PlanGroup
from .reporting import report
from .stages import (
    Attended,
    BlockSelection,
    QuantizedQuery,
    Selection,
    absorb,
    attend,
    compress,
    copy_pages,
    gather,
    inverse_rope,
    map,
    merge,
    norm,
    out_project,
    project,
    quant_index_q,
    rope,
    save_state,
    score,
    score_select,
    score_select_blocks,
    select,
    up_project,
    write_index,
    write_kv,
)
from .tensor import Tensor, tensor
from .tools import bench, capacity, doctor, explain, program

__version__ = f"{_VERSION // 10000}.{_VERSION // 100 % 100}.{_VERSION % 100}"
