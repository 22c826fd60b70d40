"""What an operator can switch on or off beside POST /identify; the core knows none of it."""
