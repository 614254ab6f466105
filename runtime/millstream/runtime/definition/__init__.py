"""What an author writes: grains, markers, references, state fields, placement."""
