"""Documents to Markdown with a document model."""
