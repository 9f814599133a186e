"""smla: sparse multi-head latent attention (DeepSeek-V3.2, V4 and V4.1, GLM-5.x) on CPUs and NVIDIA GPUs.

Stages: smla.attend, smla.score, smla.select, ... (smla.stages). Objects for engines: smla.Cache,
smla.Context, smla.Plan, smla.Backend, smla.Layer. Tools: smla.doctor(), smla.explain(), smla.capacity(),
smla.bench() and smla.report().
"""

from . import errors, rows, stages
from ._abi import VERSION as _VERSION
from ._abi import Writer
from ._run import check_call, explain_call, prepare_call
from ._views import GpuView
from .backend import Backend, Metadata, backends, select_backend, why_not
from .cache import Cache
from .call import Call
from .context import Context, Workspace, default_context, set_default_context
from .errors import *
from .layer import Layer, Session
from .model import layer_info, rope_frequencies
from .plan import Plan, PlanGroup
from .reporting import Report, report
from .stages import *
from .stages import map as map
from .tensor import Tensor, tensor
from .tools import bench, capacity, doctor, explain, program

__version__ = f"{_VERSION // 10000}.{_VERSION // 100 % 100}.{_VERSION % 100}"

__all__ = ["Backend", "Cache", "Call", "Context", "GpuView", "Layer", "Metadata", "Plan", "PlanGroup"]
__all__ += ["Session", "Tensor", "Workspace", "Writer", "backends", "bench", "capacity", "check_call"]
__all__ += ["default_context", "doctor", "explain", "explain_call", "layer_info", "prepare_call", "program"]
__all__ += ["Report", "report", "rope_frequencies", "rows", "select_backend", "set_default_context"]
__all__ += ["stages", "tensor", "why_not"]
__all__ += errors.__all__
__all__ += stages.__all__
