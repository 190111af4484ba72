"""The parties of a job as machines without IO: what each decides, whoever drives it."""
