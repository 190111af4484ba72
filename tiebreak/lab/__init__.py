"""The lab: what plays, studies or shows the system. It stands on the core, and nothing in the core imports it.

`sim` plays games in virtual time with adversaries, `incentives` asks whether honesty pays, `network` runs all parties
on one machine, `demo` shows the whole path, and `commands` registers the lab's commands with `tiebreak`.
"""
