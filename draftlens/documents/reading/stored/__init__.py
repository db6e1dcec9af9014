"""Results of other pipelines, read from their JSON files: Docling, MinerU and PP-StructureV3."""
