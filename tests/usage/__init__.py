"""Programs that users write: each works, and does what the plain one does, or is refused by name with the fix."""
