"""`tiebreak economics`: recommends terms of a job under which honest training and audits pay."""

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from tiebreak.cli import options as opt
from tiebreak.lab.incentives.figures import FIGURES, PRESETS, Figures, load
from tiebreak.lab.incentives.findings import agree_options, document, find, tables
from tiebreak.lab.incentives.measured import measured
from tiebreak.protocol.errors import ConfigurationError

WIDTH: Final = 140


class Number(click.ParamType[Decimal]):
    """A decimal number, kept exactly as written."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Checks no range here; the figure itself knows which values make sense."""
        try:
            return Decimal(value)
        except InvalidOperation:
            self.fail(f"expected a number such as 0.25, got {value!r}", param, ctx)


_figure_options = opt.options(*(
    click.option(f"--{name.replace('_', '-')}", name, type=Number(), help=f"{limits.what[0].upper()}{limits.what[1:]}.")
    for name, (_, limits) in FIGURES.items()
))  # fmt: skip


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Start from one of these jobs and change it.")
@click.option("--figures", "figures_file", type=opt.FILE,
              help="TOML or JSON file of figures, named as the options are (with _ for -).")  # fmt: skip
@_figure_options
@opt.json_option
def economics(preset: str | None, figures_file: Path | None, as_json: bool, **given: Decimal | None) -> None:
    """Recommend stakes, reward, fee and windows for a job.

    It also says how far off your figures may be. Give figures by a preset, a file, or options; options override the
    file, and the file overrides the preset. Gas and the slowest data are what this repository measured. Only you can
    know the rest: prices, what a lie is worth, how often somebody audits. docs/economics.md explains the model, and
    what the contract does not pay for.
    """
    changed = {name: value for name, value in given.items() if value is not None}
    base = None if preset is None else PRESETS[preset].figures
    if figures_file is not None:
        base = load(figures_file, base)
    if base is None and not changed:
        raise ConfigurationError(f"expected --preset ({', '.join(PRESETS)}), --figures or figures as options, got none")
    found = Figures.of(changed, base)
    findings = find(found, measured(found.descent_levels))
    if as_json:
        opt.tell(document(findings), as_json=True)
        return
    console = Console(width=None if Console().is_terminal else WIDTH)
    if preset is not None:
        chosen = PRESETS[preset]
        console.print(f"{chosen.title}. Assumed: {chosen.source}.", markup=False, highlight=False)
    values = "; ".join(f"{name} {float(getattr(found, name)):,.6g}" for name in FIGURES)
    console.print(f"Figures: {values}.", markup=False, highlight=False)
    for table in tables(findings):
        shown = RichTable(title=table.title, title_justify="left", header_style="dim", pad_edge=False)
        for number, name in enumerate(table.header):
            shown.add_column(name, justify="left" if number == 0 else "right")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
    console.print(f"tiebreak agree {' '.join(agree_options(findings.recommendation))}", highlight=False, soft_wrap=True)
