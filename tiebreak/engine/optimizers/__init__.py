"""The update of a step: its settings, torch's own objects translated to these, and the rules that emit it."""
