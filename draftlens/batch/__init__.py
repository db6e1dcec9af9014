"""Many clips: batches in this process, and Ray for many machines."""
