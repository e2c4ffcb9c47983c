"""Read any container to 16 kHz mono float32 in a reader child; cut long audio at pauses. Nothing is imported here."""
