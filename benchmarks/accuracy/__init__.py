"""What freezing does to accuracy: the papers' comparisons on real data."""
