"""The grain directory: what one silo owns of it, and how the others are asked."""
