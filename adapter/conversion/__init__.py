"""Checkpoints of other forms made into safetensors: what is read, how it is written, what is refused."""
