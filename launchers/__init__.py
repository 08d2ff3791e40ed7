"""Programs: flags -> configuration -> training. Nothing imports them."""
