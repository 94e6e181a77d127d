"""Training states on disk, in the format of whichever trainer saved them, read one sample at a time.

One reader for SpecForge (offline, compressed or not, and normalised), speculators (v0, v1, current), ModelOpt,
TensorRT-LLM and TorchSpec; the format is told by the content. No file says which boundaries it holds: the reader is
told, or finds `boundaries.json` beside the data.
"""

from wiring.files.states.folder import StateFolder, iter_states, open_states, read_state
from wiring.files.states.listing import state_files
from wiring.files.states.sample import Norm, Skipped, StateSample
from wiring.files.states.sidecar import SIDECAR, write_sidecar
from wiring.files.states.writing import write_state

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
