"""Stateful NNX modules; nothing here knows Brax's training."""

from brax_nnx_plugin.networks.adapter import PPOAdapter as PPOAdapter
from brax_nnx_plugin.networks.containers import (
  AbstractContainer as AbstractContainer,
)
from brax_nnx_plugin.networks.containers import Concat as Concat
from brax_nnx_plugin.networks.containers import Parallel as Parallel
from brax_nnx_plugin.networks.containers import Sequential as Sequential
from brax_nnx_plugin.networks.containers import Splitter as Splitter
from brax_nnx_plugin.networks.delay import Delay as Delay
from brax_nnx_plugin.networks.factories import make_mlp as make_mlp
from brax_nnx_plugin.networks.factories import (
  make_mlp_actor_critic as make_mlp_actor_critic,
)
from brax_nnx_plugin.networks.factories import (
  make_mlp_layers as make_mlp_layers,
)
from brax_nnx_plugin.networks.feedforward import Dense as Dense
from brax_nnx_plugin.networks.graph import PopulationGraph as PopulationGraph
from brax_nnx_plugin.networks.heads import Quantiles as Quantiles
from brax_nnx_plugin.networks.normalizer import Normalizer as Normalizer
from brax_nnx_plugin.networks.parallel_recurrent import MinGRU as MinGRU
from brax_nnx_plugin.networks.recording import (
  extract_activations as extract_activations,
)
from brax_nnx_plugin.networks.recording import with_recording as with_recording
from brax_nnx_plugin.networks.recurrent import GRU as GRU
from brax_nnx_plugin.networks.recurrent import LSTM as LSTM
from brax_nnx_plugin.networks.recurrent import SimpleRNN as SimpleRNN
from brax_nnx_plugin.networks.samplers import ActionSampler as ActionSampler
from brax_nnx_plugin.networks.samplers import NormalSampler as NormalSampler
from brax_nnx_plugin.networks.samplers import (
  NormalTanhSampler as NormalTanhSampler,
)
from brax_nnx_plugin.networks.symmetry import MirrorLoss as MirrorLoss
from brax_nnx_plugin.networks.types import PPONetworkOutput as PPONetworkOutput
from brax_nnx_plugin.networks.types import StatefulModule as StatefulModule
from brax_nnx_plugin.networks.types import (
  StatefulModuleOutput as StatefulModuleOutput,
)
from brax_nnx_plugin.networks.utils import Filter as Filter
from brax_nnx_plugin.networks.utils import Flattener as Flattener
from brax_nnx_plugin.networks.utils import Map as Map
from brax_nnx_plugin.networks.utils import Merge as Merge
from brax_nnx_plugin.networks.utils import Scale as Scale
from brax_nnx_plugin.networks.variational import (
  AR1VariationalBottleneck as AR1VariationalBottleneck,
)
from brax_nnx_plugin.networks.variational import (
  VariationalBottleneck as VariationalBottleneck,
)
