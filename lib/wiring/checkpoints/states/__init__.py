"""Training states on disk, in the format of whichever trainer saved them, read one sample at a time.

One reader for SpecForge (offline, compressed or not, and normalised), speculators (v0, v1, current), ModelOpt,
TensorRT-LLM and TorchSpec; the format is told by the content. No file says which boundaries it holds: the reader is
told, or finds `boundaries.json` beside the data.
"""

from wiring.checkpoints.states.sidecar import SIDECAR, write_sidecar
from wiring.checkpoints.states.state_folder import StateFolder, iter_states, open_states, read_state
from wiring.checkpoints.states.state_listing import state_files
from wiring.checkpoints.states.state_sample import Norm, Skipped, StateSample
from wiring.checkpoints.states.state_writing import write_state

__all__ = [
    "SIDECAR",
    "Norm",
    "Skipped",
    "StateFolder",
    "StateSample",
    "iter_states",
    "open_states",
    "read_state",
    "state_files",
    "write_sidecar",
    "write_state",
]
