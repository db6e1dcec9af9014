"""Documents to Markdown with a document model, in two stages."""
