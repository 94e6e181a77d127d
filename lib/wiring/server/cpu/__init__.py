"""The CPU kit: lets the unedited SGLang 0.5.23 serve EAGLE-3 on a CPU without AMX.

The parts, in the order in which a server's process meets them:

- `launcher`: the command and the environment of such a server (imports nothing heavy);
- `serve`: the main script of the server's process, which its children run again;
- `boot`: what must stand before SGLang is imported;
- `kernels/`: the `sgl_kernel` package of the CPU server, on the path of its processes only;
- `plugin`: the SGLang plugin that registers the attention backends of `attention`, which leave the
  arithmetic to `spans`.

Nothing here acts in a process whose environment lacks `WIRING_SGLANG_CPU=1`.
"""
