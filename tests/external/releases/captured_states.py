"""Run a release's own setter and its own forward on stand-ins, and see which boundaries come out.

The layers are stand-ins that know their depth: what comes out of layer k is the state after k + 1 layers, split in two
addends as in the model. Adding the residual before there is one raises TypeError, as adding None to a tensor does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from release_source import SETTER, Release, function


@dataclass(frozen=True)
class Model:
    """Where a release keeps a target: the file, the class with the setter and the class with the layers' loop."""

    module: str
    causal: str
    inner: str


MODELS = {
    "DeepseekV3ForCausalLM": Model("deepseek_v2", "DeepseekV3ForCausalLM", "DeepseekV2Model"),
    "LlamaForCausalLM": Model("llama", "LlamaForCausalLM", "LlamaModel"),
    "Qwen3ForCausalLM": Model("qwen3", "Qwen3ForCausalLM", "Qwen3Model"),
    "GptOssForCausalLM": Model("gpt_oss", "GptOssForCausalLM", "GptOssModel"),
    "KimiK25ForConditionalGeneration": Model("kimi_k25", "KimiK25ForConditionalGeneration", ""),
    "Qwen2ForCausalLM": Model("qwen2", "Qwen2ForCausalLM", "Qwen2Model"),
    "Qwen3MoeForCausalLM": Model("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    "Glm4MoeForCausalLM": Model("glm4_moe", "Glm4MoeForCausalLM", "Glm4MoeModel"),
}


_NO_RESIDUAL = "unsupported operand type(s) for +: 'Tensor' and"


class State:
    """A state, or one addend of it. `boundary` is None for an addend alone."""

    def __init__(self, boundary: int | None, depth: int):
        self.boundary, self.depth = boundary, depth
        self.shape, self.device = (1, 1), "cpu"

    def __add__(self, other: Any) -> State:
        if not isinstance(other, State):
            raise TypeError(f"{_NO_RESIDUAL} {type(other).__name__!r}")
        assert self.depth == other.depth, "the two addends are of one layer"
        return State(self.depth, self.depth)

    def clone(self) -> State:
        return State(self.boundary, self.depth)


class StateList(list):
    """Stands in for SGLang's AuxHiddenStateList."""

    def capture(self, state: State, *, owned: bool = False) -> None:
        self.append(state if owned else state.clone())


class Packer(StateList):
    """Stands in for SGLang's AuxHiddenStatePacker; whether all states came, the release's own `finalize` says."""

    own_finalize: Callable

    def __init__(self, expected: int):
        super().__init__()
        self._num_captures = expected

    def append(self, state: State) -> None:
        super().append(state.clone())

    def finalize(self) -> StateList:
        self._idx, self._buffer = len(self), self if self else None
        self._feature_size = 1 if self else None
        return type(self).own_finalize(self)


class Layer:
    """Stands in for decoder layer `index`; gives back what the loop unpacks, by the names it unpacks into."""

    CAPTURES = ("captured_last_layer_outputs", "capture_output", "capture_gathered")

    def __init__(self, index: int, returned: tuple[str, ...], scope: dict):
        self.index, self.returned, self.scope = index, returned, scope

    def __call__(self, *given: Any, **named: Any) -> Any:
        for name in self.CAPTURES:
            take = named.get(name)
            if take is not None:
                (take if callable(take) else take.append)(State(self.index, self.index))
        self.scope["depth"] = self.index + 1
        values = tuple(State(None, self.index + 1) if name in _ADDENDS else None for name in self.returned)
        return values if len(values) > 1 else values[0]


_ADDENDS = ("hidden_states", "residual")


class ResidualBatch:
    """Stands in for the module `residual_batch` of 0.5.21 and newer, which keeps the residual out of the loop."""

    scope: dict

    def start(self, *_: Any) -> None: ...

    def snapshot(self, *_: Any) -> State:
        return State(self.scope["depth"], self.scope["depth"])

    def complete_output(self, hidden_states: State, *_: Any) -> State:
        return hidden_states

    def final_norm(self, hidden_states: State, *_: Any, capture: Any = None, **__: Any) -> State:
        if capture is not None:
            capture(self.snapshot())
        return hidden_states

    def norm(self, hidden_states: State, *_: Any, capture_output: Any = None) -> State:
        return self.final_norm(hidden_states, capture=capture_output)  # as 0.5.21 calls it


@dataclass(frozen=True)
class Outcome:
    """The boundaries that one forward hands to the draft, or what was raised; `alias`: an embedding without a copy."""

    boundaries: tuple[int, ...] = ()
    error: str = ""
    alias: bool = False


@dataclass(frozen=True)
class Code:
    """A release's own functions for one model, ready to run."""

    setter: Callable
    inner_setter: Callable | None
    forward: Callable
    arguments: tuple[str, ...]
    returned: tuple[str, ...]
    residual: ResidualBatch


def _packer(release: Release) -> type[Packer] | None:
    path = "layers/aux_hidden_states.py"
    if not release.has(path):
        return None
    for node in release.tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == "AuxHiddenStatePacker":
            (own,) = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "finalize"]
            return type("ReleasePacker", (Packer,), {"own_finalize": staticmethod(function(own))})
    return None


@cache
def _code(release: Release, model: Model) -> Code:
    forward = release.method(model.module, model.inner, "forward")
    inner = release.method(model.module, model.inner, SETTER)
    residual = ResidualBatch()
    called = {node.func.id for node in ast.walk(forward) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
    # The prompt is not split over ranks, whatever a release calls that question.
    whole_prompt = {name: lambda *_: False for name in called if name.endswith("prefill_cp")}
    ready = function(
        forward,
        AuxHiddenStatePacker=_packer(release),
        AuxHiddenStateList=StateList,
        residual_batch=residual,
        snapshot=lambda hidden, residual: hidden.clone() if residual is None else hidden + residual,
        finish_layer_stack=lambda hidden, residual, _: (hidden, residual),
        **whole_prompt,
    )
    return Code(
        setter=function(release.method(model.module, model.causal, SETTER)),
        inner_setter=None if inner is None else function(inner),
        forward=ready,
        arguments=tuple(argument.arg for argument in forward.args.args)[1:],
        returned=_unpacked(forward),
        residual=residual,
    )


class Server:
    """One release with one target of `num_layers` layers: ids are set as the release sets them, states captured."""

    def __init__(self, release: Release, architecture: str, num_layers: int):
        self.release, self.num_layers = release, num_layers
        self.model = MODELS[architecture]
        self.wrapper, self.supported = None, True
        if architecture.startswith("Kimi"):
            self.wrapper = self.model
            if release.has(f"models/{self.model.module}.py"):
                self.model = MODELS[_language_model(release, self.model)]
            self.supported = release.method(self.wrapper.module, self.wrapper.causal, SETTER) is not None
        setter = release.method(self.model.module, self.model.causal, SETTER) if self.model.inner else None
        self.supported = self.supported and setter is not None
        if self.supported:
            self.code = _code(release, self.model)
            self._make()

    def _make(self) -> None:
        self.scope: dict[str, Any] = {"depth": 0}
        inner = MagicMock()
        inner.layers = [Layer(i, self.code.returned, self.scope) for i in range(self.num_layers)]
        inner.start_layer, inner.end_layer, inner.layers_to_capture = 0, self.num_layers, []
        inner.enable_a2a_moe, inner.llama_4_scaling_config = False, None
        inner.config = SimpleNamespace(num_hidden_layers=self.num_layers)
        inner.gemm_output_zero_allocator_size = 0
        self.embedded = State(0, 0)
        inner.embed_tokens = lambda *_: self.embedded
        inner.norm = lambda hidden, *rest: (hidden, None) if rest else hidden
        if self.code.inner_setter is None:
            del inner.set_eagle3_layers_to_capture
        else:
            inner.set_eagle3_layers_to_capture = lambda layers: self.code.inner_setter(inner, layers)
        self.inner = inner
        causal = SimpleNamespace(
            pp_group=SimpleNamespace(is_last_rank=True),
            config=inner.config,
            model=inner,
            capture_aux_hidden_states=False,
        )
        causal.set_eagle3_layers_to_capture = lambda *ids: self.code.setter(causal, *ids)
        self.causal = causal
        if self.wrapper is not None:
            node = self.release.method(self.wrapper.module, self.wrapper.causal, SETTER)
            outer, wrapper = function(node), SimpleNamespace(language_model=causal)
            self.set_layers = lambda *ids: outer(wrapper, *ids)
        else:
            self.set_layers = causal.set_eagle3_layers_to_capture

    def capture(self) -> Outcome:
        """Run the release's forward over the stand-in layers."""
        batch = MagicMock()
        batch.can_run_tbo = False
        batch.forward_mode.is_idle.return_value = False
        self.scope["depth"] = 0
        self.code.residual.scope = self.scope
        tokens = State(None, 0)
        known = {"input_ids": tokens, "positions": tokens, "forward_batch": batch}
        try:
            came = self.code.forward(self.inner, **{name: known.get(name) for name in self.code.arguments})
        except TypeError as error:
            if _NO_RESIDUAL not in str(error):
                raise  # a stand-in that does not fit, not what the release does
            return Outcome(error=str(error))
        except (AssertionError, RuntimeError) as error:
            if "aux hidden states" not in str(error):
                raise
            return Outcome(error=str(error))
        if not isinstance(came, tuple):
            return Outcome()
        aux = came[1].finalize() if isinstance(came[1], Packer) else came[1]
        assert all(isinstance(state, State) for state in aux), "what is captured went through a stand-in"
        boundaries = tuple(state.boundary for state in aux)
        assert None not in boundaries, "the state is the sum of both addends"
        return Outcome(boundaries, alias=any(state is self.embedded for state in aux))


def _language_model(release: Release, model: Model) -> str:
    """The class that the wrapper makes its language model of."""
    init = release.method(model.module, model.causal, "__init__")
    made = [
        ast.unparse(node.value.func)
        for node in ast.walk(init)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.language_model"
        and isinstance(node.value, ast.Call)
    ]
    return made[0]


def _unpacked(forward: ast.FunctionDef) -> tuple[str, ...]:
    """The names that the loop unpacks a layer's output into."""
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            if called in ("layer", "self.layers[i]"):
                target = node.targets[0]
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                return tuple(ast.unparse(part) for part in parts)
    raise AssertionError("the loop over the layers was not found")
