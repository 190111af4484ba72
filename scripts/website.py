"""Hooks of mkdocs for the site of docs/: navigation, home page, links, the page of commands, checks of the result.

Navigation is docs/README.md, the list that readers of the repository see. A link to a file that has no page becomes the
name of that file. What a strict build cannot find is checked here: pictures without text, and pages that ask another
host for something.
"""

import logging
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tiebreak.cli.main import command_groups, tiebreak

LOG: Final = logging.getLogger("mkdocs.hooks.website")
ROOT: Final = Path(__file__).resolve().parents[1]
MOVED: Final = {"README.md": "index.md", "docs/README.md": "contents.md"}
"""File of the repository -> the page of the site that it becomes. Other pages keep their paths below docs/."""
LISTED: Final = re.compile(r"^(?:\* |\| )\[([^]]*)\]\(([\w/-]+\.md)\)", re.MULTILINE)
LINK: Final = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)")
COMMANDS: Final = "<!-- commands -->"


def on_config(config: MkDocsConfig) -> None:
    """Makes the navigation of docs/README.md: a section for each of its headings."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    sections = [{title: list(listed(body))} for title, body in zip(parts[::2], parts[1::2], strict=True)]
    config.nav = [{"Home": "index.md"}, *sections, "contents.md"]


def listed(text: str) -> Iterator[dict[str, str | list[str]]]:
    """The pages of a list. The list that the README.md of a folder holds becomes a section within the section."""
    for title, path in LISTED.findall(text):
        folder, name = posixpath.split(path)
        inner = LISTED.findall((ROOT / "docs" / path).read_text(encoding="utf-8")) if name == "README.md" else []
        yield {title: [path, *(f"{folder}/{one}" for _, one in inner)] if inner else path}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages whose files have other names in the repository."""
    for source, page in MOVED.items():
        if (there := files.get_file_from_path(source.removeprefix("docs/"))) is not None:
            files.remove(there)
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs')
    """Directs links to pages, and names what has none; writes the commands where the page of commands wants them."""
    here = page.file.src_uri
    source = next((source for source, moved in MOVED.items() if moved == here), f"docs/{here}")

    def directed(link: re.Match[str]) -> str:
        picture, text, path, anchor = link.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        uri = MOVED.get(target, target.removeprefix("docs/"))
        if (target in MOVED or target.startswith("docs/")) and files.get_file_from_path(uri) is not None:
            return f"{picture}[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor or ''})"
        if not (ROOT / target).exists():
            return link[0]
        return text if text.strip("`/") == target.strip("/") else f"{text} (`{target}`)"

    directed_text = LINK.sub(directed, markdown)
    return directed_text.replace(COMMANDS, "\n".join(commands())) if COMMANDS in markdown else directed_text


def commands() -> Iterator[str]:
    """Markdown for each command, by the groups of `tiebreak --help`."""
    with click.Context(tiebreak, info_name="tiebreak") as context:
        for title, group in command_groups().items():
            yield f"## {title}\n"
            for name in group:
                command = tiebreak.get_command(context, name)
                assert command is not None, "the help lists commands that are there"
                yield from described(command, name, context, "###", group[name].needs)


def described(
    command: click.Command, name: str, parent: click.Context, heading: str, needs: Mapping[str, str]
) -> Iterator[str]:
    """Usage, help, extras and options of a command and, below it, of its own commands."""
    with click.Context(command, info_name=name, parent=parent) as context:
        yield f"{heading} {context.command_path}\n\n```text"
        yield f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        yield re.sub(r"^\x08$\n((?:.+\n?)+)", r"```text\n\1\n```", help_of(command), flags=re.MULTILINE)
        extras = needs.get(context.command_path.removeprefix("tiebreak "), "").split(",")
        yield f"\nExtras: {', '.join(f'`{extra}`' for extra in extras)}.\n" if extras[0] else ""
        for parameter in command.get_params(context):
            if (record := parameter.get_help_record(context)) is not None and record[1] and "--help" not in record[0]:
                yield f"`{record[0]}`\n:   {plain(record[1])}\n"
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None, "a group lists commands that are there"
                yield from described(found, inner, context, f"{heading}#", needs)


def plain(text: str) -> str:
    """A help text as Markdown: what is not in backticks stands for itself."""
    parts = " ".join(text.split()).split("`")
    return "`".join([re.sub(r"([\\[\]*<>_])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)])


def help_of(command: click.Command) -> str:
    """The help text, without the indentation of its source."""
    return "\n".join(line.strip() for line in (command.help or "").split("\f")[0].splitlines())


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:  # noqa: ARG001 (mkdocs')
    """Warns, and so fails a strict build, of pictures without text and of what comes from another host."""
    for tag, attributes in re.findall(r"<(img|script|link|iframe|source|video|audio|embed|object)\b([^>]*)>", output):
        if re.search(r"""(?:src|href|data)=["']?(?:https?:)?//""", attributes):
            LOG.warning("%s: expected nothing from another host, got <%s%s>", page.file.src_uri, tag, attributes)
        if tag == "img" and not re.search(r"""\balt=["'][^"']+["']""", attributes):
            LOG.warning("%s: expected a text for each picture, got <img%s>", page.file.src_uri, attributes)


class Prose(Extension):
    """Shows how docstrings here describe parameters ("name: meaning.") as lists of definitions."""

    NAMED = re.compile(r"(?:^|(?<=[.)\]] ))((?:[a-z_]\w*, )*[a-z_]\w*): (?=\S)")

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrites the docstring of an object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(self.shown(part) for part in obj.docstring.value.split("\n\n"))

    def shown(self, paragraph: str) -> str:
        """A paragraph with its parameters as definitions, and its errors in a paragraph of their own."""
        flat = " ".join(paragraph.split())
        before, *named = self.NAMED.split(flat)
        if not named and "Raises " not in flat:
            return paragraph
        definitions = [
            f"{', '.join(f'`{name}`' for name in names.split(', '))}\n:   {meaning.strip()}"
            for names, meaning in zip(named[::2], named[1::2], strict=True)
        ]
        text = "\n\n".join([before, *definitions] if before else definitions)
        return re.sub(r"(?:^|(?<=[.)\]]) )Raises ", "\n\n**Raises** ", text)
