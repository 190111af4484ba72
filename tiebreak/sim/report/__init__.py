"""The report of simulations: what results files say, as HTML and Markdown with pictures, each number with its place."""
