"""SGLang plugin that simulates, on 0.5.23 and a CPU, the CUDA graphs of verify in 0.4.9 to 0.5.10.post1.

There `CudaGraphRunner.__init__` sets the default layers, by the same call without ids, and captures the graphs of
verify before the draft's ids are set; prefill, which runs outside them, takes the ids. A CPU server has no graphs, so
here each verify forward is run on the default layers, and every other one on the layers of the draft's ids.
"""

import os

SWITCH = "WIRING_PLANTED_GRAPH_FAULT"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"


def plugin():
    """Register the hook if the switch is set in the environment."""
    if os.environ.get(SWITCH) == "1":
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(FORWARD, forward, HookType.AROUND)


def forward(original, runner, forward_batch, *rest, **more):
    """Wrap `ModelRunner.forward` of target and draft."""
    if runner.is_draft_worker or not forward_batch.forward_mode.is_target_verify():
        return original(runner, forward_batch, *rest, **more)
    layers = runner.model.model.layers_to_capture
    runner.model.set_eagle3_layers_to_capture()
    try:
        return original(runner, forward_batch, *rest, **more)
    finally:
        runner.model.model.layers_to_capture = layers
