"""What a checkpoint is, as pure values: dtypes, safetensors headers, weight indexes, byte ranges. No I/O, no torch."""
