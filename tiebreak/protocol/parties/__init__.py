"""The parties of a job as state machines without IO: what each one decides, whichever driver runs it."""
