"""Names that the wheel's metas import."""
