"""Speed figures of this engine, paired with another engine's in one interleaved run."""
