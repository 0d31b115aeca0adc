"""Commands about who belongs to the site."""
