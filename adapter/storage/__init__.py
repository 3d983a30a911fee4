"""Objects read by range from a store: S3, local files, memory."""
