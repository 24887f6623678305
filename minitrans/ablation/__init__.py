"""The ablation laboratory: studies of variants and seeds, run cell by cell, compared and reported."""
