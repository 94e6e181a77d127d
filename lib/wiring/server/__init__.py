"""Start, attach to, check and query SGLang servers; serve EAGLE-3 on a CPU."""
