"""What makes a replica fast before its first invocation: the user's recorded calls, run ahead."""
