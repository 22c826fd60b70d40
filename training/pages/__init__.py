"""What the HTML pages share: their style, their macros, and how a template is rendered."""
