"""The grain's side of a delivery."""
