"""Networks in PyTorch: those of the paper, and those that convex solutions are equivalent to.

None of the paper's networks is convex in its weights (``is_convex`` is False); their training
problems have convex equivalents, which `convexformer.problem` states and `convexformer.solvers`
solves. :class:`GatedLayer` on fixed inputs is such a program itself. A stack of them,
:class:`GatedTransformer`, is not.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'convexformer.nn needs PyTorch, which is not installed: pip install "convexformer[nn]"'
    ) from error

from ._attention import SoftmaxAttention
from ._losses import total_loss
from ._network import Network, load_network
from ._simplex import GatedFCN, SequenceAttention, SimplexAttention, project_simplex
from .layers import GatedLayer
from .proximal_adam import ProximalAdam, prox_group_norm
from .recover import network_of, to_network, to_sequence_network
from .transformer import GatedTransformer, GatedTransformerConfig

__all__ = [
    "GatedFCN",
    "GatedLayer",
    "GatedTransformer",
    "GatedTransformerConfig",
    "Network",
    "ProximalAdam",
    "SequenceAttention",
    "SimplexAttention",
    "SoftmaxAttention",
    "load_network",
    "network_of",
    "project_simplex",
    "prox_group_norm",
    "to_network",
    "to_sequence_network",
    "total_loss",
]
