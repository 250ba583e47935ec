"""Messages of changed rows of properties, in the form with the fewest bytes."""
