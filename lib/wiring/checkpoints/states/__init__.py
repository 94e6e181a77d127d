"""Read training states in the formats of all trainers, one sample at a time.

One reader for SpecForge (offline, compressed or not, and normalized), speculators (v0, v1, current), ModelOpt,
TensorRT-LLM and TorchSpec; the format is detected from the content. No format records which boundaries it holds: they
are an argument of the reader, or in a `boundaries.json` in the folder of the data.
"""

from wiring.checkpoints.states.state_folder import StateFolder, open_states
from wiring.checkpoints.states.state_listing import write_sidecar
from wiring.checkpoints.states.state_sample import Norm, Skipped, StateSample, write_state

__all__ = ["Norm", "Skipped", "StateFolder", "StateSample", "open_states", "write_sidecar", "write_state"]
