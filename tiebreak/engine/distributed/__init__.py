"""One step computed by many workers: the same bits for any number of them."""
