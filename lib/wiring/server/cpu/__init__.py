"""The CPU kit: serve EAGLE-3 with the unmodified SGLang 0.5.23 on a CPU without AMX.

- `launcher`: flags and environment of a CPU server;
- `serve`: main script of its processes, which prepares each of them before SGLang is imported;
- `kernels/`: the package `sgl_kernel` of CPU servers;
- `torch_native`: SGLang plugin and attention backends; `spans` does their arithmetic.

Nothing here acts in a process without `WIRING_SGLANG_CPU=1` in its environment.
"""
