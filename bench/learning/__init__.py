"""Tables of the learning algorithms: variants, features, folding."""
