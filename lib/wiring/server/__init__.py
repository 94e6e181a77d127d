"""The live SGLang: life cycle, resolved arguments, capture, the CPU kit."""
