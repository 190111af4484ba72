"""The application: command line, demo tasks, report. Wires the others together and owns no rules."""
